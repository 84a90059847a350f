"""Exact sums of the gradients of a table whose rows are added up for each record."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit import native
from tacit.clipping.exact.grid import squared_rows
from tacit.clipping.exact.targets import PartialSum, Target
from tacit.clipping.exact.uses import BagUse


class BagSum(PartialSum):
    """The gradients of one table."""

    def __init__(self, use: BagUse, target: Target) -> None:
        self._use, self._target = use, target

    def measure(self, squares: Tensor) -> None:
        use = self._use
        across = squared_counts(use.tokens, use.padding, use.rows)
        squares[:, self._target.group] += across * squared_rows(use.outputs)

    def add(self, factors: Tensor) -> None:
        use, total = self._use, self._target.total
        outputs = self._target.whole_units(use.outputs, factors)
        kernels = native.active()
        if kernels is not None:
            kernels.exact_table(use.tokens, outputs, use.padding, total)
            return
        each = outputs[:, None, :].expand(-1, use.tokens.shape[1], -1)
        if use.padding is not None:
            each = each.masked_fill((use.tokens == use.padding)[:, :, None], 0.0)
        total.index_add_(0, use.tokens.flatten(), each.flatten(0, 1))


def squared_counts(tokens: Tensor, padding: int | None, rows: int) -> Tensor:
    """Σ over different tokens of (how often a record has it)², exact, in double precision."""
    kernels = native.active()
    if kernels is not None and tokens.shape[1] < 1 << 11:
        ones = torch.ones(len(tokens), 1, 1).expand(-1, tokens.shape[1], 1)
        return kernels.table_norms(tokens, ones, rows, -1 if padding is None else padding).double()
    ordered = tokens.sort(1).values
    counted = torch.zeros(ordered.shape, dtype=torch.float64)
    if padding is None or padding < 0:
        present = torch.ones_like(counted)
    else:
        present = (ordered != padding).double()
    changes = (ordered[:, 1:] != ordered[:, :-1]).long()
    places = torch.nn.functional.pad(changes.cumsum(1), (1, 0))
    return counted.scatter_add_(1, places, present).square_().sum(1)
