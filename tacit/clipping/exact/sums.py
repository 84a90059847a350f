"""Norms, factors and sums of per-record gradients, the sums without rounding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.clipping.contract import ClippingRule, Layout
from tacit.clipping.exact.bag_sums import BagSum
from tacit.clipping.exact.dense_sums import DenseSum
from tacit.clipping.exact.grid import FACTOR_SLACK, Grid
from tacit.clipping.exact.linear_sums import linear_sums
from tacit.clipping.exact.targets import PartialSum, Target
from tacit.clipping.exact.uses import BagUse, DenseUse, LinearUse, Use
from tacit.errors import NoProofError

_KEPT = 256 << 20
"""Bytes of materialised gradients that are kept from their norms to their sums; others are computed
twice."""


class ExactSum:
    """Σ over records of clipped gradients, each truncated by itself to a public grid.

    Guarantee: `vector` is the exact sum of the records' contributions, whatever the order, the
    micro-batches, the threads or the algorithm of a matrix product. A contribution depends on its
    record alone and obeys the bounds of the rule. A record whose gradient is not finite
    contributes zero.
    """

    def __init__(self, layout: Layout, rule: ClippingRule, records: int) -> None:
        self.vector = torch.zeros(layout.size, dtype=torch.float64)
        self._rule = rule
        grid = Grid.of(rule.bounds, records)
        views = layout.views(self.vector)
        self._targets = {
            name: Target(views[name], group, grid)
            for name, group in zip(layout.names, layout.groups, strict=True)
        }
        self._left = records

    def add(self, uses: Sequence[Use]) -> Tensor:
        """Clip the records of a micro-batch and add them; returns their factors, private."""
        records = uses[0].records
        self._left -= records
        if self._left < 0:
            raise NoProofError(
                "a step has more rows than the data set has records; the exact sum is only proven"
                " for as many: give every record once"
            )
        squares = torch.zeros(records, len(self._rule.bounds), dtype=torch.float64)
        sums = self._sums(uses)
        for each in sums:
            each.measure(squares)
        quiet = ~torch.isfinite(squares).all(1, keepdim=True)
        norms = squares.masked_fill_(quiet, 0.0).sqrt_()
        factors = self._rule.factors(norms) * FACTOR_SLACK
        factors = factors.masked_fill(quiet, 0.0)
        for each in sums:
            each.add(factors)
        return factors

    def _sums(self, uses: Sequence[Use]) -> list[PartialSum]:
        linear = [use for use in uses if isinstance(use, LinearUse)]
        bags = [use for use in uses if isinstance(use, BagUse)]
        dense = [use for use in uses if isinstance(use, DenseUse)]
        found: list[PartialSum] = linear_sums(linear, self._targets, len(self._rule.bounds))
        found += [BagSum(use, self._targets[use.table]) for use in bags]
        left = _KEPT
        for use in sorted(dense, key=lambda use: use.size):
            left -= use.size
            found.append(DenseSum(use, self._targets[use.parameter], keep=left >= 0))
        return found
