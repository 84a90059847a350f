"""Which part of the flat gradient a tensor of the forward pass stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tacit.clipping.contract import Layout


@dataclass(frozen=True)
class Slot:
    """A trainable parameter, or a view of one, as the receiver of a gradient.

    `size`, `stride` and `offset` place the view inside the parameter laid out contiguously.
    """

    name: str
    group: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def within(self, parameter: Tensor) -> Tensor:
        """This slot's part of a contiguous tensor of the whole parameter's shape."""
        return parameter.as_strided(
            self.size, self.stride, parameter.storage_offset() + self.offset
        )

    @property
    def span(self) -> tuple[int, int]:
        """First element touched, and one past the last."""
        reach = sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))
        return self.offset, self.offset + reach + 1


class Slots:
    """The trainable parameters of a model, found again by identity during a forward pass."""

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        named = dict(model.named_parameters())
        self.parameters: Mapping[str, Tensor] = {name: named[name] for name in layout.names}
        self._names = {id(p): name for name, p in self.parameters.items()}
        self._groups = dict(zip(layout.names, layout.groups, strict=True))

    def whole(self, name: str) -> Slot:
        """The slot of an entire parameter."""
        shape = self.parameters[name].shape
        stride = torch.empty(shape, device="meta").stride()
        return Slot(name, self._groups[name], tuple(shape), stride, 0)

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

    def _find(self, tensor: Tensor) -> Slot | None:
        name = self._names.get(id(tensor))
        if name is not None:
            return self.whole(name)
        base = tensor._base if tensor._is_view() else None
        name = self._names.get(id(base))
        if base is None or name is None:
            return None
        overlapping = any(s == 0 and n > 1 for n, s in zip(tensor.shape, tensor.stride()))
        if overlapping or not base.is_contiguous() or base.dtype != tensor.dtype:
            return None
        offset = int(tensor.storage_offset() - base.storage_offset())
        return Slot(name, self._groups[name], tuple(tensor.shape), tensor.stride(), offset)
