"""How the records of a micro-batch use trainable parameters: what their gradients are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

_BLOCK = 8 << 20
"""Bytes of per-record gradients that are computed at once, if one record's do not take more."""
_FLOAT = 4


@dataclass(frozen=True)
class LinearUse:
    """Record r's gradient is outputs[r] ⊗ inputs[r] for `weight`, and outputs[r] for `bias`."""

    weight: str | None
    bias: str | None
    inputs: Tensor
    outputs: Tensor

    @property
    def records(self) -> int:
        """Rows of the micro-batch."""
        return len(self.outputs)


@dataclass(frozen=True)
class BagUse:
    """Record r adds outputs[r] to row tokens[r, p] of a table for every p but for padding."""

    table: str
    tokens: Tensor
    padding: int | None
    rows: int
    outputs: Tensor

    @property
    def records(self) -> int:
        """Rows of the micro-batch."""
        return len(self.outputs)


@dataclass(frozen=True)
class DenseUse:
    """Record r's gradient is materialised: row r of what `compute` returns for a slice of records.

    `compute` is a fixed function of the slice's records: [records, elements] in float32, row r from
    what belongs to record r alone, with the same bits when it is called again. The elements make
    a tensor of `shape`; with its dimensions in `order` it is the parameter's gradient.
    """

    parameter: str
    records: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    compute: Callable[[slice], Tensor]

    @classmethod
    def of(cls, parameter: str, gradients: Tensor) -> DenseUse:
        """The use whose gradients [records, ...] are already there."""
        records, *shape = gradients.shape
        rows = gradients.reshape(records, -1)
        return cls(parameter, records, tuple(shape), tuple(range(len(shape))), rows.__getitem__)

    @property
    def elements(self) -> int:
        """Elements of one record's gradient."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes of all records' gradients."""
        return _FLOAT * self.records * self.elements

    @property
    def blocks(self) -> list[slice]:
        """The records in blocks of bounded size, which follow from public shapes alone."""
        step = max(1, _BLOCK // (_FLOAT * self.elements))
        starts = range(0, self.records, step)
        return [slice(start, min(start + step, self.records)) for start in starts]


Use = LinearUse | BagUse | DenseUse
