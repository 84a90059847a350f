"""The shape of a convolution, and the plain gradients that torch computes for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """Stride, symmetric padding and dilation per spatial dimension, and the channel groups."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def pads(self) -> list[int]:
        """The padding as `torch.nn.functional.pad` wants it."""
        return [p for pad in reversed(self.padding) for p in (pad, pad)]

    def backward(
        self,
        x: Tensor,
        g: Tensor,
        weight: Tensor,
        wanted: tuple[bool, bool],
        transposed: bool = False,
        extra: tuple[int, ...] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Torch's own gradients of the input and of the weight, each if wanted."""
        result: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            g,
            x,
            weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            transposed,
            extra or (0,) * len(self.stride),
            self.groups,
            [*wanted, False],
        )
        return result


@dataclass(frozen=True)
class Problem:
    """One convolution's images and output gradients, `images` of them to each record in turn."""

    x: Tensor
    g: Tensor
    kernel: torch.Size
    geometry: Geometry
    records: int

    @property
    def images(self) -> int:
        """Images per record."""
        return self.x.shape[0] // self.records

    @property
    def window(self) -> int:
        """Elements of one kernel window within one channel group."""
        return math.prod(self.kernel[1:])

    @property
    def pixels(self) -> int:
        """Output pixels of one record."""
        return self.images * math.prod(self.g.shape[2:])

    def part(self, start: int, stop: int) -> Problem:
        """The same for a range of records."""
        images = slice(start * self.images, stop * self.images)
        return Problem(self.x[images], self.g[images], self.kernel, self.geometry, stop - start)


def spread(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    """An option given once for all spatial dimensions, or one by one."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values
