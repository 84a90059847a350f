"""Normalisation within channels or groups of channels: group, instance and frozen batch norm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.clipping.layers.contributions import Dense
from tacit.clipping.layers.operation import Gradients, Match, Operation, Placement, Saved
from tacit.clipping.layers.slots import Slot, Slots
from tacit.errors import ModelError


def group_norm(
    parameters: Slots,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Match | None:
    """Rule for `torch.nn.functional.group_norm`."""
    slots = parameters.resolve(weight, bias)
    if slots is None or input.dim() < 2:
        return None
    return input, _GroupNorm(num_groups, eps, weight, bias, slots)


def instance_norm(
    parameters: Slots,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Match | None:
    """Rule for `torch.nn.functional.instance_norm`: a group for every channel."""
    slots = parameters.resolve(weight, bias)
    alone = use_input_stats and running_mean is None and running_var is None
    if slots is None or not alone or input.dim() < 3 or math.prod(input.shape[2:]) < 2:
        return None
    return input, _GroupNorm(input.shape[1], eps, weight, bias, slots)


def batch_norm(
    parameters: Slots,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Match | None:
    """Rule for `torch.nn.functional.batch_norm`: only with frozen statistics."""
    if training or running_mean is None or running_var is None:
        raise ModelError(
            "batch_norm mixes the records of a batch, so that no record's influence can be"
            " bounded; use GroupNorm instead, or freeze its statistics with .eval()"
        )
    slots = parameters.resolve(weight, bias)
    if slots is None:
        return None
    return input, _FrozenNorm(running_mean, running_var, eps, weight, bias, slots)


class Affine(Operation):
    """A normalisation followed by a scale and a shift, of which one or both are trained."""

    def __init__(
        self,
        eps: float,
        weight: Tensor | None,
        bias: Tensor | None,
        slots: Sequence[Slot | None],
    ) -> None:
        self.eps = eps
        self.weight = None if weight is None else weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.weight_slot, self.bias_slot = slots
        self.slots = [slot for slot in slots if slot is not None]

    def gradients(self, scale: Tensor | None, shift: Tensor | None) -> Gradients:
        """Per-record gradients [records, ...] under the slots that want them."""
        found: Gradients = []
        if self.weight_slot is not None and scale is not None:
            found.append((self.weight_slot, Dense(scale)))
        if self.bias_slot is not None and shift is not None:
            found.append((self.bias_slot, Dense(shift)))
        return found


class _GroupNorm(Affine):
    """Backward as if all rows were channels of one: scale and shift gradients stay apart."""

    kept = 1

    def __init__(
        self,
        groups: int,
        eps: float,
        weight: Tensor | None,
        bias: Tensor | None,
        slots: Sequence[Slot | None],
    ) -> None:
        super().__init__(eps, weight, bias, slots)
        self._groups = groups

    def leading(self, x: Tensor) -> Sequence[int]:
        return x.shape[:1]

    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        n, channels, *space = x.shape
        output, mean, rstd = torch.native_group_norm(
            x.contiguous(),
            self.weight,
            self.bias,
            n,
            channels,
            math.prod(space),
            self._groups,
            self.eps,
        )
        return output, (mean, rstd)

    def back(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, at: Placement | None
    ) -> tuple[Tensor | None, Gradients]:
        mean, rstd = saved
        n, channels, *space = x.shape
        size = math.prod(space)
        input_gradient, scale, shift = torch.ops.aten.native_group_norm_backward(
            g.contiguous().view(1, n * channels, size),
            x.contiguous().view(1, n * channels, size),
            mean.view(1, n * self._groups),
            rstd.view(1, n * self._groups),
            None if self.weight is None else self.weight.repeat(n),
            1,
            n * channels,
            size,
            n * self._groups,
            [input_needed, at is not None, at is not None],
        )
        if input_needed:
            input_gradient = input_gradient.view(x.shape)
        if at is None:
            return input_gradient, []
        scale, shift = (at.summed(t.view(n, channels), 1) for t in (scale, shift))
        return input_gradient, self.gradients(scale, shift)


class _FrozenNorm(Affine):
    """Batch norm with fixed statistics: a scale and a shift per channel."""

    def __init__(
        self,
        mean: Tensor,
        variance: Tensor,
        eps: float,
        weight: Tensor | None,
        bias: Tensor | None,
        slots: Sequence[Slot | None],
    ) -> None:
        super().__init__(eps, weight, bias, slots)
        self._mean, self._rstd = mean.clone(), (variance + eps).rsqrt()

    def leading(self, x: Tensor) -> Sequence[int]:
        self.kept = x.dim() - 1
        return x.shape[:1]

    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        output = self._normalised(x)
        if self.weight is not None:
            output = output * _per_channel(self.weight, x)
        if self.bias is not None:
            output = output + _per_channel(self.bias, x)
        return output, ()

    def _normalised(self, x: Tensor) -> Tensor:
        return (x - _per_channel(self._mean, x)).mul_(_per_channel(self._rstd, x))

    def back(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, at: Placement | None
    ) -> tuple[Tensor | None, Gradients]:
        input_gradient: Tensor | None = None
        if input_needed:
            slope = self._rstd if self.weight is None else self._rstd * self.weight
            input_gradient = g * _per_channel(slope, x)
        if at is None:
            return input_gradient, []
        scale, shift = (
            at.summed(t.reshape(*g.shape[:2], -1).sum(2), 1) for t in (self._normalised(x) * g, g)
        )
        return input_gradient, self.gradients(scale, shift)


def _per_channel(value: Tensor, like: Tensor) -> Tensor:
    return value.view(-1, *[1] * (like.dim() - 2))
