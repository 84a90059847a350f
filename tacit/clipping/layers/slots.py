"""Which part of the flat gradient a tensor of the forward pass stands for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tacit.clipping.contract import Layout


@dataclass(frozen=True)
class Slot:
    """A trainable parameter, or a view of one, as the receiver of a gradient.

    `size`, `stride` and `offset` place the view inside the parameter laid out contiguously;
    `entire` says that it is all of it.
    """

    name: str
    group: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    entire: bool = False

    def within(self, parameter: Tensor) -> Tensor:
        """This slot's part of a contiguous tensor of the whole parameter's shape."""
        if self.entire:
            return parameter
        return parameter.as_strided(
            self.size, self.stride, parameter.storage_offset() + self.offset
        )

    @property
    def span(self) -> tuple[int, int]:
        """First element touched, and one past the last."""
        reach = sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))
        return self.offset, self.offset + reach + 1


@dataclass(frozen=True)
class Lookup:
    """Rows of a table that were looked up for all records at once, as positions are.

    `result` is kept alive so that it can be found again by identity, as long as nobody writes to
    it: `version` is torch's count of that.
    """

    slot: Slot
    tokens: Tensor
    result: Tensor
    version: int


class Met(NamedTuple):
    """A trainable parameter as an argument of a torch function, perhaps transposed first."""

    name: str
    transposed: bool


class Slots:
    """The trainable parameters of a model, found again by identity during a forward pass."""

    def __init__(self, parameters: Mapping[str, Tensor], layout: Layout) -> None:
        self.parameters = parameters
        self._names = {id(p): name for name, p in self.parameters.items()}
        self._lookups: dict[int, Lookup] = {}
        self._groups = dict(zip(layout.names, layout.groups, strict=True))
        self._whole = {name: self._slot_of(name, p.shape) for name, p in self.parameters.items()}

    def whole(self, name: str) -> Slot:
        """The slot of an entire parameter."""
        return self._whole[name]

    def _slot_of(self, name: str, shape: torch.Size) -> Slot:
        strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
        return Slot(name, self._groups[name], tuple(shape), tuple(strides), 0, entire=True)

    def name_of(self, tensor: Tensor) -> str | None:
        """The name of a trainable parameter, None for any other tensor."""
        return self._names.get(id(tensor))

    def names_within(self, module: nn.Module) -> dict[str, str]:
        """The trainable parameters inside a module: its own name for each, and the model's."""
        return {
            local: self._names[id(p)]
            for local, p in module.named_parameters()
            if id(p) in self._names
        }

    def resolve(self, *tensors: Tensor | None) -> Sequence[Slot | None] | None:
        """The slots of one call's parameters, None for each that needs no gradient.

        None altogether when the call has no trainable parameter, or one of its tensors depends
        on trainable parameters in a way that only autograd knows: then it must run as it is.
        """
        slots: list[Slot | None] = []
        for tensor in tensors:
            if tensor is None or not tensor.requires_grad:
                slots.append(None)
                continue
            slot = self._find(tensor)
            if slot is None:
                return None
            slots.append(slot)
        return slots if any(slots) else None

    def remember(self, lookup: Lookup) -> None:
        """Let the result of a lookup be recognised where it meets activations."""
        self._lookups[id(lookup.result)] = lookup

    def forget_lookups(self) -> None:
        """Let go of the lookups of a forward pass."""
        self._lookups.clear()

    def lookup(self, tensor: Tensor) -> Lookup | None:
        """The lookup that a tensor is the result of, possibly with more dimensions of size 1."""
        base = tensor._base if tensor._is_view() else tensor
        found = self._lookups.get(id(base))
        if found is None or found.result._version != found.version:
            return None
        whole = tensor.numel() == found.result.numel() and tensor.is_contiguous()
        return found if whole else None

    def _find(self, tensor: Tensor) -> Slot | None:
        name = self._names.get(id(tensor))
        if name is not None:
            return self.whole(name)
        base = tensor._base if tensor._is_view() else None
        name = self._names.get(id(base))
        if base is None or name is None:
            return None
        if _overlaps(tensor) or not base.is_contiguous() or base.dtype != tensor.dtype:
            return None
        offset = int(tensor.storage_offset() - base.storage_offset())
        size, stride, whole = tuple(tensor.shape), tensor.stride(), self.whole(name)
        if (size, stride, offset) == (whole.size, whole.stride, 0):
            return whole
        return Slot(name, whole.group, size, stride, offset)


def _overlaps(view: Tensor) -> bool:
    """Whether two places of a view may be the same element, as in windows of `unfold`."""
    reach = 0
    extents = sorted(zip(view.stride(), view.shape, strict=True))
    for stride, size in extents:
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
