"""Bare parameters: added to activations, multiplied with them, or repeated for every row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.clipping.layers.contributions import Dense
from tacit.clipping.layers.embedding import TableRows
from tacit.clipping.layers.operation import Gradients, Match, Operation, Placement, Saved
from tacit.clipping.layers.slots import Lookup, Slot, Slots


def addition(
    parameters: Slots, input: Tensor, other: Tensor | None = None, **unusual: object
) -> Match | None:
    """Rule for activations plus a parameter, in either order."""
    found = None if unusual else _split(parameters, input, other)
    return None if found is None else (found[0], _Sum(*found[1:], sign=1))


def subtraction(
    parameters: Slots, input: Tensor, other: Tensor | None = None, **unusual: object
) -> Match | None:
    """Rule for activations minus a parameter."""
    found = None if unusual else _split(parameters, input, other)
    if found is None or found[1] is not other:
        return None
    return found[0], _Sum(*found[1:], sign=-1)


def multiplication(
    parameters: Slots, input: Tensor, other: Tensor | None = None, **unusual: object
) -> Match | None:
    """Rule for activations times a parameter, in either order."""
    found = None if unusual else _split(parameters, input, other)
    return None if found is None else (found[0], _Product(*found[1:]))


def expansion(
    parameters: Slots, input: Tensor, *sizes: int | Sequence[int], size: Sequence[int] = ()
) -> Match | None:
    """Rule for a parameter repeated by `expand`, as a class token is for every row."""
    slots = parameters.resolve(input)
    if slots is None or slots[0] is None:
        return None
    sizes = sizes or (size,)
    flat = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    shape = input.detach().expand(flat).shape  # type: ignore[arg-type]
    nothing = input.detach().new_zeros(0)
    return nothing, _Repetition(input, shape, slots[0])


def prelu(parameters: Slots, input: Tensor, weight: Tensor) -> Match | None:
    """Rule for `torch.prelu`."""
    slots = parameters.resolve(weight)
    if slots is None or slots[0] is None or input.dim() < 2:
        return None
    return input, _PReLU(weight.detach(), slots[0], input.dim() - 1)


def _split(
    parameters: Slots, left: object, right: object
) -> tuple[Tensor, Tensor, Slot | Lookup] | None:
    """Activations of the result's shape, the parameter, and where its gradient belongs."""
    if not (isinstance(left, Tensor) and isinstance(right, Tensor) and left.dtype == right.dtype):
        return None
    for x, parameter in ((left, right), (right, left)):
        source = _source(parameters, parameter)
        if source is not None and _source(parameters, x) is None:
            shape = torch.broadcast_shapes(x.shape, parameter.shape)
            return (x if x.shape == shape else x.expand(shape)), parameter, source
    return None


def _source(parameters: Slots, tensor: Tensor) -> Slot | Lookup | None:
    slots = parameters.resolve(tensor)
    return parameters.lookup(tensor) if slots is None else slots[0]


class _Broadcast(Operation):
    """A parameter stretched over rows and positions: gradients are sums over what it covers."""

    def __init__(self, parameter: Tensor, source: Slot | Lookup) -> None:
        self._parameter, self._source = parameter.detach(), source
        self.slots = [source.slot if isinstance(source, Lookup) else source]
        inner = [i for i, n in enumerate(parameter.shape) if n > 1]
        self.kept = parameter.dim() - inner[0] if inner else 0

    def leading(self, x: Tensor) -> Sequence[int]:
        return x.shape[: x.dim() - self.kept]

    def reduced(self, g: Tensor, at: Placement) -> Gradients:
        """Sums over everything but the record and the parameter's own extent."""
        records = at.rows.records
        own = self._parameter.shape[self._parameter.dim() - self.kept :]
        per_record = at.summed(g, self.kept).sum_to_size(records, *own)
        slot, source = self.slots[0], self._source
        if not isinstance(source, Lookup):
            return [(slot, Dense(per_record.reshape(records, *slot.size)))]
        tokens = source.tokens.flatten().expand(records, -1)
        rows = per_record.reshape(records, tokens.shape[1], -1)
        return [(slot, TableRows(tokens, rows, slot.size[0]))]


class _Sum(_Broadcast):
    saves_input = False

    def __init__(self, parameter: Tensor, source: Slot | Lookup, sign: int) -> None:
        super().__init__(parameter, source)
        self._sign = sign

    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        return x + self._sign * self._parameter, ()

    def back(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, at: Placement | None
    ) -> tuple[Tensor | None, Gradients]:
        return g, [] if at is None else self.reduced(self._sign * g, at)


class _Product(_Broadcast):
    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        return x * self._parameter, ()

    def back(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, at: Placement | None
    ) -> tuple[Tensor | None, Gradients]:
        input_gradient = g * self._parameter if input_needed else None
        return input_gradient, [] if at is None else self.reduced(g * x, at)


class _Repetition(_Broadcast):
    saves_input = False

    def __init__(self, parameter: Tensor, shape: torch.Size, slot: Slot) -> None:
        super().__init__(parameter, slot)
        self._shape = shape

    def leading(self, x: Tensor) -> Sequence[int]:
        return self._shape[: len(self._shape) - self.kept]

    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        return self._parameter.expand(self._shape).clone(), ()

    def back(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, at: Placement | None
    ) -> tuple[Tensor | None, Gradients]:
        return None, [] if at is None else self.reduced(g, at)


class _PReLU(Operation):
    def __init__(self, weight: Tensor, slot: Slot, kept: int) -> None:
        self._weight, self._slot = weight, slot
        self.slots = [slot]
        self.kept = kept

    def leading(self, x: Tensor) -> Sequence[int]:
        return x.shape[:1]

    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        return torch.prelu(x, self._weight), ()

    def back(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, at: Placement | None
    ) -> tuple[Tensor | None, Gradients]:
        slopes = self._weight.view(-1, *[1] * (x.dim() - 2))
        input_gradient = torch.where(x > 0, g, g * slopes) if input_needed else None
        if at is None:
            return input_gradient, []
        per_channel = (x.clamp_max(0) * g).reshape(*x.shape[:2], -1).sum(2)
        per_record = at.summed(per_channel, 1).sum_to_size(at.rows.records, self._weight.numel())
        return input_gradient, [(self._slot, Dense(per_record))]
