"""Norms, factors and sums of per-record gradients, the sums without rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit import native
from tacit.clipping.contract import ClippingRule, Layout
from tacit.clipping.exact.grid import (
    FACTOR_SLACK,
    LEAST_EXPONENT,
    Grid,
    exponents_of,
    powers_of_two,
    squared_rows,
    truncated,
)
from tacit.errors import NoProofError


@dataclass(frozen=True)
class LinearUse:
    """Record r's gradient is outputs[r] ⊗ inputs[r] for `weight`, and outputs[r] for `bias`."""

    weight: str | None
    bias: str | None
    inputs: Tensor
    outputs: Tensor


@dataclass(frozen=True)
class BagUse:
    """Record r adds outputs[r] to row tokens[r, p] of a table for every p but for padding."""

    table: str
    tokens: Tensor
    padding: int | None
    rows: int
    outputs: Tensor


Use = LinearUse | BagUse


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
        self._grid = Grid.of(rule.bounds, records)
        self._views = layout.views(self.vector)
        self._groups = dict(zip(layout.names, layout.groups, strict=True))
        self._left = records

    def add(self, uses: Sequence[Use]) -> Tensor:
        """Clip the records of a micro-batch and add them; returns their factors, private."""
        records = len(uses[0].outputs)
        self._left -= records
        if self._left < 0:
            raise NoProofError(
                "a step has more rows than the data set has records; the exact sum is only proven"
                " for as many: give every record once"
            )
        linear = [use for use in uses if isinstance(use, LinearUse)]
        bags = [use for use in uses if isinstance(use, BagUse)]
        kernels = native.active()
        products = self._products(linear) if kernels is not None and linear else None
        if kernels is not None and products is not None:
            squares = kernels.exact_squares(products)
            across = list(products.across)
        else:
            squares = torch.zeros(records, len(self._rule.bounds), dtype=torch.float64)
            across = [self._measure_linear(use, squares) for use in linear]
        for bag in bags:
            self._measure_bag(bag, squares)
        quiet = ~torch.isfinite(squares).all(1, keepdim=True)
        norms = squares.masked_fill_(quiet, 0.0).sqrt_()
        factors = self._rule.factors(norms) * FACTOR_SLACK
        factors = factors.masked_fill(quiet, 0.0)
        if kernels is not None and products is not None:
            kernels.exact_sums(products, factors)
        else:
            for use, squared in zip(linear, across, strict=True):
                self._add_linear(use, squared, factors)
        for bag in bags:
            self._add_bag(bag, factors)
        return factors

    def _products(self, uses: Sequence[LinearUse]) -> native.ExactProducts | None:
        """Uses as the compiled kernels take them, if they can read them all."""
        found = []
        for use in uses:
            g, x = native.rows_of(use.outputs), native.rows_of(use.inputs)
            if g is None or x is None:
                return None
            named = use.weight or use.bias, use.bias or use.weight
            group, shift_group = (self._groups[name] for name in named if name is not None)
            of_inputs, _ = self._grid.split(x.width, g.width)
            found.append(
                native.ExactProduct(
                    g,
                    None if use.weight is None else x,
                    None if use.weight is None else self._views[use.weight],
                    None if use.bias is None else self._views[use.bias],
                    *(group, shift_group),
                    *(self._grid.exponents[group], self._grid.exponents[shift_group]),
                    *(self._grid.bits, of_inputs),
                )
            )
        return native.ExactProducts(found, len(self._rule.bounds))

    def _measure_bag(self, use: BagUse, squares: Tensor) -> None:
        across = squared_counts(use.tokens, use.padding, use.rows)
        squares[:, self._groups[use.table]] += across * squared_rows(use.outputs)

    def _measure_linear(self, use: LinearUse, squares: Tensor) -> Tensor:
        """Add a use's squared norms to its groups' columns; returns those of its inputs."""
        down = squared_rows(use.outputs)
        across = squared_rows(use.inputs) if use.weight is not None else down
        if use.weight is not None:
            squares[:, self._groups[use.weight]] += across * down
        if use.bias is not None:
            squares[:, self._groups[use.bias]] += down
        return across

    def _add_linear(self, use: LinearUse, across: Tensor, factors: Tensor) -> None:
        grid = self._grid
        if use.weight is not None:
            group = self._groups[use.weight]
            factor = factors[:, group]
            total = self._views[use.weight]
            of_inputs, of_outputs = grid.split(total.shape[1], total.shape[0])
            exponents = exponents_of(across.masked_fill(factor == 0, 0.0))
            absent = exponents < LEAST_EXPONENT
            exponents.masked_fill_(absent, 0)
            scales = powers_of_two(of_inputs - exponents).masked_fill_(absent, 0.0)
            inputs = truncated(use.inputs, scales)
            scales = factor * powers_of_two(exponents + (of_outputs - grid.exponents[group]))
            scales.masked_fill_(absent, 0.0)
            outputs = truncated(use.outputs, scales).mul_(grid.unit(group))
            total.addmm_(outputs.t(), inputs)
        if use.bias is not None:
            self._views[use.bias] += self._whole_units(use.outputs, factors, use.bias).sum(0)

    def _add_bag(self, use: BagUse, factors: Tensor) -> None:
        outputs = self._whole_units(use.outputs, factors, use.table)
        tokens = use.tokens
        kernels = native.active()
        if kernels is not None:
            kernels.exact_table(tokens, outputs, use.padding, self._views[use.table])
            return
        each = outputs[:, None, :].expand(-1, tokens.shape[1], -1)
        if use.padding is not None:
            each = each.masked_fill((tokens == use.padding)[:, :, None], 0.0)
        self._views[use.table].index_add_(0, tokens.flatten(), each.flatten(0, 1))

    def _whole_units(self, outputs: Tensor, factors: Tensor, name: str) -> Tensor:
        """Output gradients times their factors, in whole units of the grid."""
        group = self._groups[name]
        unit = self._grid.unit(group)
        return truncated(outputs, factors[:, group] / unit).mul_(unit)


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
