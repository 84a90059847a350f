"""The shape of a convolution, and one batch of it sorted by record."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

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
    """The images and output gradients of one convolution, every record's images in a row."""

    x: Tensor
    g: Tensor
    kernel: tuple[int, ...]
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

    @property
    def weights(self) -> int:
        """Elements of the kernel, and so of one record's gradient."""
        return math.prod(self.kernel)

    @property
    def shape(self) -> tuple[object, ...]:
        """What two problems must share so that their images can be put together."""
        return self.x.shape[1:], self.g.shape[1:], self.geometry

    def joined(self, others: Sequence[Problem]) -> Problem:
        """The same with the images of others of the same shape added to each record's own."""

        def join(tensors: list[Tensor]) -> Tensor:
            apart: list[Tensor] = [t.unflatten(0, (self.records, -1)) for t in tensors]
            return torch.cat(apart, 1).flatten(0, 1)

        parts = [self, *others]
        return replace(self, x=join([p.x for p in parts]), g=join([p.g for p in parts]))

    @property
    def per_image(self) -> Problem:
        """The same with every image its own record."""
        return replace(self, records=self.x.shape[0])

    def starts(self, dim: int) -> list[int]:
        """Where the first window puts each tap of one spatial dimension."""
        dilation, padding = self.geometry.dilation[dim], self.geometry.padding[dim]
        return [tap * dilation - padding for tap in range(self.kernel[2 + dim])]

    @property
    def seen(self) -> Tensor:
        """The images with zeros where no tap ever is: factors of zero do not silence infinity."""
        x, ones = self.x, (1,) * len(self.geometry.stride)
        if self.geometry.stride == self.geometry.dilation == ones:
            return x
        for dim, step in enumerate(self.geometry.stride):
            outputs = range(self.g.shape[2 + dim])
            met = {start + step * output for start in self.starts(dim) for output in outputs}
            unseen = [place for place in range(x.shape[2 + dim]) if place not in met]
            if unseen:
                x = x.index_fill(2 + dim, torch.tensor(unseen, device=x.device), 0)
        return x

    def part(self, start: int, stop: int) -> Problem:
        """The same for a range of records."""
        images = slice(start * self.images, stop * self.images)
        return replace(self, x=self.x[images], g=self.g[images], records=stop - start)

    def blocks(self, bytes_per_record: int, block: int) -> Iterator[tuple[slice, Problem]]:
        """The records in even blocks of at most `block` bytes each, for all threads to share."""
        most = max(1, block // max(1, bytes_per_record))
        shared = min(most, torch.get_num_threads())
        blocks = -(-self.records // (most - most % shared))
        step = -(-self.records // (blocks * shared)) * shared
        for start in range(0, self.records, step):
            stop = min(start + step, self.records)
            yield slice(start, stop), self.part(start, stop)

    def each_image(self, factors: Tensor) -> Tensor:
        """The factors of records as those of their images."""
        each = factors.to(self.x.dtype)
        return each if self.images == 1 else each.repeat_interleave(self.images)

    def summed(self, factors: Tensor, weight: Tensor) -> Tensor:
        """The weight gradient of all images, each record scaled by its factor."""
        x, g = self.x, self.g
        each = self.each_image(factors).view(-1, *[1] * (x.dim() - 1))
        if x.numel() < g.numel():
            x = x * each
        else:
            g = g * each
        return self.geometry.backward(x, g, weight, (False, True))[1]


def spread(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    """An option given once for all spatial dimensions, or one by one."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values
