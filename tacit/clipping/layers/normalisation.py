"""Normalisation within channels or groups of channels: group, instance and frozen batch norm."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from tacit import native
from tacit.clipping.layers.contributions import Dense, widened
from tacit.clipping.layers.operation import Gradients, Match, Operation, Placement, Saved
from tacit.clipping.layers.slots import Slot, Slots
from tacit.errors import ModelError

_BLOCK = 4 << 20
"""Bytes of images that are taken at once, so that they stay in cache."""


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
    return input, GroupNorm(num_groups, eps, weight, bias, slots)


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
    return input, GroupNorm(input.shape[1], eps, weight, bias, slots)


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
    operation = _FrozenNorm(running_mean, running_var, eps, weight, bias, slots)
    operation.kept = input.dim() - 1
    return input, operation


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


class RowNorm(Affine):
    """One whose statistics are those of a single row."""

    @abstractmethod
    def differentiated(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, own_needed: bool
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The input's gradient, and where they are needed those of scale and shift, each with all
        leading dimensions."""

    def back(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, at: Placement | None
    ) -> tuple[Tensor | None, Gradients]:
        own_needed = at is not None
        input_gradient, *own = self.differentiated(x, saved, g, input_needed, own_needed)
        if at is None:
            return input_gradient, []
        scale, shift = (None if t is None else at.summed(t, self.kept) for t in own)
        return input_gradient, self.gradients(scale, shift)


class GroupNorm(RowNorm):
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
        kernels = self._kernels(x)
        if kernels is not None:
            output, *saved = kernels.group_norm(x, self._groups, self.weight, self.bias, self.eps)
            return output, tuple(saved)
        output, mean, rstd = torch.native_group_norm(
            x if _is_channels_last(x) else x.contiguous(),
            self.weight,
            self.bias,
            n,
            channels,
            math.prod(space),
            self._groups,
            self.eps,
        )
        return output, (mean, rstd)

    def differentiated(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, own_needed: bool
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        mean, rstd = saved
        kernels = self._kernels(x)
        if kernels is not None:
            return kernels.group_norm_backward(x, g, self.weight, mean, rstd, input_needed)
        if _is_channels_last(x):
            g = g.contiguous(memory_format=torch.channels_last)
            return _backward_by_image(x, g, self.weight, mean, rstd, input_needed)
        n, channels = x.shape[:2]
        input_gradient, scale, shift = self._backward(
            g.reshape(1, n * channels, -1),
            x.reshape(1, n * channels, -1),
            mean.view(1, -1),
            rstd.view(1, -1),
            None if self.weight is None else self.weight.repeat(n),
            [input_needed, own_needed],
        )
        return (
            input_gradient.view(x.shape) if input_needed else None,
            scale.view(n, channels) if own_needed else None,
            shift.view(n, channels) if own_needed else None,
        )

    @staticmethod
    def _kernels(x: Tensor) -> native.Library | None:
        """The compiled kernels, where they know this kind of input."""
        known = _is_channels_last(x) and x.dtype == torch.float32 and x.is_cpu and not x.is_neg()
        return native.active() if known else None

    @staticmethod
    def _backward(
        g: Tensor,
        x: Tensor,
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor | None,
        wanted: list[bool],
    ) -> tuple[Tensor, Tensor, Tensor]:
        n, channels, *space = x.shape
        sizes = (n, channels, math.prod(space), mean.shape[1])
        result: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_group_norm_backward(
            g, x, mean, rstd, weight, *sizes, [*wanted, wanted[1]]
        )
        return result


def _is_channels_last(x: Tensor) -> bool:
    last = torch.channels_last
    return x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=last)


def _backward_by_image(
    x: Tensor, g: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, input_needed: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """The input's gradient, and those of scale and shift for every image, in channels-last format.

    Torch's own kernel for this format adds up scale and shift over images, and is slow for few
    channels. Here everything is done for a few images while they are in cache.
    """
    channels = x.shape[1]
    each = channels // mean.shape[1]
    terms = each * math.prod(x.shape[2:])
    result = torch.empty_like(x) if input_needed else None
    scales, shifts = [], []
    step = max(1, _BLOCK // (x.element_size() * x[0].numel()))
    for start in range(0, len(x), step):
        part = slice(start, start + step)
        inputs, outputs = (widened(_pixels_first(t[part])) for t in (x, g))
        mid, spread = (widened(t[part]).repeat_interleave(each, 1) for t in (mean, rstd))
        centred = inputs - mid.unsqueeze(1)
        scale, shift = (centred * outputs).sum(1).mul_(spread), outputs.sum(1)
        scales.append(scale.to(x.dtype))
        shifts.append(shift.to(x.dtype))
        if result is None:
            continue
        slopes = spread if weight is None else spread * weight
        by_group = (t.mul(slopes).unflatten(1, (-1, each)).sum(2) for t in (scale, shift))
        means = (t.div_(-terms).repeat_interleave(each, 1) for t in by_group)
        tilt, offset = (t.unsqueeze(1) for t in means)
        torch.addcmul(offset, centred, tilt.mul_(spread.unsqueeze(1)), out=centred)
        target, slopes = _pixels_first(result[part]), slopes.unsqueeze(1)
        if target.dtype == centred.dtype:
            torch.addcmul(centred, outputs, slopes, out=target)
        else:
            target.copy_(centred.addcmul_(outputs, slopes))
    return result, torch.cat(scales), torch.cat(shifts)


def _pixels_first(images: Tensor) -> Tensor:
    """Images in channels-last format as [images, pixels, channels], in the same memory."""
    return images.permute(0, 2, 3, 1).flatten(1, 2)


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
