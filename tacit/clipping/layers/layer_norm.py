"""Normalisation of each position by itself: layer norm and RMS norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.clipping.layers.normalisation import RowNorm
from tacit.clipping.layers.operation import Match, Saved
from tacit.clipping.layers.slots import Slot, Slots


def layer_norm(
    parameters: Slots,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Match | None:
    """Rule for `torch.nn.functional.layer_norm`."""
    slots = parameters.resolve(weight, bias)
    if slots is None:
        return None
    return input, LayerNorm(tuple(normalized_shape), eps, weight, bias, slots)


def rms_norm(
    parameters: Slots,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Match | None:
    """Rule for `torch.nn.functional.rms_norm`."""
    slots = parameters.resolve(weight)
    if slots is None:
        return None
    epsilon = torch.finfo(input.dtype).eps if eps is None else eps
    return input, RMSNorm(tuple(normalized_shape), epsilon, weight, None, [*slots, None])


class _PositionNorm(RowNorm):
    def __init__(
        self,
        shape: tuple[int, ...],
        eps: float,
        weight: Tensor | None,
        bias: Tensor | None,
        slots: Sequence[Slot | None],
    ) -> None:
        super().__init__(eps, weight, bias, slots)
        self.shape = shape
        self.kept = len(shape)

    def leading(self, x: Tensor) -> Sequence[int]:
        return x.shape[: x.dim() - self.kept]


class LayerNorm(_PositionNorm):
    """Layer norm."""

    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        output, mean, rstd = torch.native_layer_norm(
            x, self.shape, self.weight, self.bias, self.eps
        )
        return output, (mean, rstd)

    def differentiated(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, own_needed: bool
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        mean, rstd = saved
        input_gradient: Tensor | None = None
        if input_needed:
            input_gradient, _, _ = torch.ops.aten.native_layer_norm_backward(
                g, x, self.shape, mean, rstd, self.weight, self.bias, [True, False, False]
            )
        if not own_needed:
            return input_gradient, None, None
        scale = None if self.weight is None else (x - mean).mul_(rstd).mul_(g)
        return input_gradient, scale, g


class RMSNorm(_PositionNorm):
    """RMS norm, which has no shift."""

    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        rstd = (x.square().mean(self._dims, keepdim=True) + self.eps).rsqrt_()
        output = x * rstd
        return output if self.weight is None else output.mul_(self.weight), (rstd,)

    @property
    def _dims(self) -> list[int]:
        return list(range(-self.kept, 0))

    def differentiated(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, own_needed: bool
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (rstd,) = saved
        normalised = x * rstd
        input_gradient: Tensor | None = None
        if input_needed:
            slope = g if self.weight is None else g * self.weight
            along = (slope * normalised).mean(self._dims, keepdim=True)
            input_gradient = (slope - normalised * along).mul_(rstd)
        return input_gradient, normalised.mul_(g) if own_needed else None, None
