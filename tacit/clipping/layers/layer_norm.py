"""Normalisation of each position by itself: layer norm and RMS norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.clipping.layers.normalisation import Affine
from tacit.clipping.layers.operation import Gradients, Match, Placement, Saved
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
    return input, _LayerNorm(tuple(normalized_shape), eps, weight, bias, slots)


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
    return input, _RMSNorm(tuple(normalized_shape), epsilon, weight, None, [*slots, None])


class _PositionNorm(Affine):
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


class _LayerNorm(_PositionNorm):
    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        output, mean, rstd = torch.native_layer_norm(
            x, self.shape, self.weight, self.bias, self.eps
        )
        return output, (mean, rstd)

    def back(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, at: Placement | None
    ) -> tuple[Tensor | None, Gradients]:
        mean, rstd = saved
        input_gradient: Tensor | None = None
        if input_needed:
            input_gradient, _, _ = torch.ops.aten.native_layer_norm_backward(
                g, x, self.shape, mean, rstd, self.weight, self.bias, [True, False, False]
            )
        if at is None:
            return input_gradient, []
        scale = None
        if self.weight_slot is not None:
            scale = at.summed((x - mean).mul_(rstd).mul_(g), self.kept)
        return input_gradient, self.gradients(scale, at.summed(g, self.kept))


class _RMSNorm(_PositionNorm):
    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        rstd = (x.square().mean(self._dims, keepdim=True) + self.eps).rsqrt_()
        output = x * rstd
        return output if self.weight is None else output.mul_(self.weight), (rstd,)

    @property
    def _dims(self) -> list[int]:
        return list(range(-self.kept, 0))

    def back(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, at: Placement | None
    ) -> tuple[Tensor | None, Gradients]:
        (rstd,) = saved
        normalised = x * rstd
        input_gradient: Tensor | None = None
        if input_needed:
            slope = g if self.weight is None else g * self.weight
            along = (slope * normalised).mean(self._dims, keepdim=True)
            input_gradient = (slope - normalised * along).mul_(rstd)
        if at is None:
            return input_gradient, []
        return input_gradient, self.gradients(at.summed(normalised.mul_(g), self.kept), None)
