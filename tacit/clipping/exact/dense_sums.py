"""Exact sums of materialised per-record gradients."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tacit import native
from tacit.clipping.exact.grid import squared_rows
from tacit.clipping.exact.targets import PartialSum, Target
from tacit.clipping.exact.uses import DenseUse


class DenseSum(PartialSum):
    """The gradients of one parameter, computed block by block.

    With `keep` they are held until they are added, otherwise computed again.
    """

    def __init__(self, use: DenseUse, target: Target, *, keep: bool) -> None:
        self._use, self._target, self._keep = use, target, keep
        self._kept: list[Tensor] = []
        self._sum = torch.zeros(use.elements, dtype=torch.float64)

    def measure(self, squares: Tensor) -> None:
        kernels, column = native.active(), squares[:, self._target.group]
        for block, rows in self._computed():
            product = None if kernels is None else self._product(rows)
            if kernels is None or product is None:
                column[block] += squared_rows(rows)
            else:
                column[block] += kernels.exact_squares(product)[:, 0]
            if self._keep:
                self._kept.append(rows)

    def add(self, factors: Tensor) -> None:
        kernels, group = native.active(), self._target.group
        for block, rows in self._computed():
            product = None if kernels is None else self._product(rows)
            if kernels is None or product is None:
                self._sum += self._target.whole_units(rows, factors[block]).sum(0)
            else:
                kernels.exact_sums(product, factors[block, group, None].contiguous())
        gradient = self._sum.view(self._use.shape).permute(self._use.order)
        self._target.total.add_(gradient.reshape(self._target.total.shape))

    def _computed(self) -> Iterator[tuple[slice, Tensor]]:
        blocks = self._use.blocks
        if self._kept:
            return iter(zip(blocks, self._kept, strict=True))
        return ((block, self._use.compute(block)) for block in blocks)

    def _product(self, rows: Tensor) -> native.ExactProducts | None:
        """Rows as the compiled kernels take them, if they can read them."""
        g, target = native.rows_of(rows), self._target
        if g is None:
            return None
        exponent, bits = target.exponent, target.grid.bits
        product = native.ExactProduct(
            g, None, None, self._sum, 0, 0, exponent, exponent, bits, bits // 2
        )
        return native.ExactProducts([product], 1)
