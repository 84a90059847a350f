"""Where the rows of a batch lie in the tensors of a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from tacit.errors import ArgumentError


@dataclass(frozen=True)
class Rows:
    """The rows of one micro-batch: `views` consecutive rows belong to one record."""

    count: int
    views: int
    records: int


def rows_of(batch: Sequence[Tensor], views: int) -> Rows:
    """The rows of a batch whose tensors all have one for each view of each record."""
    count = batch[0].shape[0]
    if views < 1 or count % views:
        raise ArgumentError(
            f"a batch of {count} rows cannot hold {views} views of each record; give every record"
            " as many rows as there are views"
        )
    return Rows(count, views, count // views)


class Axis(NamedTuple):
    """The dimension that the rows vary along; `minor` when they vary fastest within it.

    A dimension may be a multiple of the rows: `[rows * positions, ...]`, or minor
    `[positions * rows, ...]`.
    """

    dim: int
    minor: bool = False

    def arrange(self, tensor: Tensor, kept: int, rows: Rows) -> Tensor:
        """The tensor as [records, positions, *kept trailing dimensions]."""
        tail = tensor.shape[tensor.dim() - kept :]
        if rows.records > 1:
            if self.dim > 0:
                tensor = tensor.movedim(self.dim, 0)
            if self.minor:
                tensor = tensor.unflatten(0, (-1, rows.count)).movedim(1, 0)
        return tensor.reshape(rows.records, -1, *tail)


FIRST = Axis(0)


def candidates(leading: Sequence[int], rows: Rows) -> list[Axis]:
    """Every axis that rows could lie along in leading dimensions of these sizes."""
    if rows.records == 1 or tuple(leading) == (rows.count,):
        return [FIRST]
    found = [Axis(d) for d, n in enumerate(leading) if n == rows.count]
    for dim, n in enumerate(leading):
        if n > rows.count and n % rows.count == 0:
            found += [Axis(dim), Axis(dim, minor=True)]
    return found
