"""Exact sums of outer products: linear layers with one vector per record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from tacit import native
from tacit.clipping.exact.grid import (
    LEAST_EXPONENT,
    exponents_of,
    powers_of_two,
    squared_rows,
    truncated,
)
from tacit.clipping.exact.targets import PartialSum, Target
from tacit.clipping.exact.uses import LinearUse


def linear_sums(
    uses: Sequence[LinearUse], targets: Mapping[str, Target], groups: int
) -> list[PartialSum]:
    """All of them at once by the compiled kernels where these can read them, else one by one."""
    kernels = native.active()
    products = _products(uses, targets, groups) if kernels is not None and uses else None
    if kernels is not None and products is not None:
        return [_CompiledSums(kernels, products)]
    return [
        _LinearSum(
            use,
            None if use.weight is None else targets[use.weight],
            None if use.bias is None else targets[use.bias],
        )
        for use in uses
    ]


class _CompiledSums(PartialSum):
    def __init__(self, kernels: native.Library, products: native.ExactProducts) -> None:
        self._kernels, self._products = kernels, products

    def measure(self, squares: Tensor) -> None:
        squares += self._kernels.exact_squares(self._products)

    def add(self, factors: Tensor) -> None:
        self._kernels.exact_sums(self._products, factors)


class _LinearSum(PartialSum):
    def __init__(self, use: LinearUse, weight: Target | None, bias: Target | None) -> None:
        self._use, self._weight, self._bias = use, weight, bias
        self._across = squared_rows(use.inputs) if weight is not None else None

    def measure(self, squares: Tensor) -> None:
        down = squared_rows(self._use.outputs)
        if self._weight is not None and self._across is not None:
            squares[:, self._weight.group] += self._across * down
        if self._bias is not None:
            squares[:, self._bias.group] += down

    def add(self, factors: Tensor) -> None:
        if self._weight is not None and self._across is not None:
            self._add_products(self._weight, self._across, factors[:, self._weight.group])
        if self._bias is not None:
            self._bias.total.add_(self._bias.whole_units(self._use.outputs, factors).sum(0))

    def _add_products(self, target: Target, across: Tensor, factor: Tensor) -> None:
        height, width = target.total.shape
        of_inputs, of_outputs = target.grid.split(width, height)
        exponents = exponents_of(across.masked_fill(factor == 0, 0.0))
        absent = exponents < LEAST_EXPONENT
        exponents.masked_fill_(absent, 0)
        scales = powers_of_two(of_inputs - exponents).masked_fill_(absent, 0.0)
        inputs = truncated(self._use.inputs, scales)
        scales = factor * powers_of_two(exponents + (of_outputs - target.exponent))
        scales.masked_fill_(absent, 0.0)
        outputs = truncated(self._use.outputs, scales).mul_(target.unit)
        target.total.addmm_(outputs.t(), inputs)


def _products(
    uses: Sequence[LinearUse], targets: Mapping[str, Target], groups: int
) -> native.ExactProducts | None:
    """Uses as the compiled kernels take them, if they can read them all."""
    found = []
    for use in uses:
        g, x = native.rows_of(use.outputs), native.rows_of(use.inputs)
        if g is None or x is None:
            return None
        weight = None if use.weight is None else targets[use.weight]
        bias = None if use.bias is None else targets[use.bias]
        across, shift = weight or bias, bias or weight
        assert across is not None and shift is not None
        of_inputs, _ = across.grid.split(x.width, g.width)
        found.append(
            native.ExactProduct(
                g,
                None if weight is None else x,
                None if weight is None else weight.total,
                None if bias is None else bias.total,
                *(across.group, shift.group, across.exponent, shift.exponent),
                *(across.grid.bits, of_inputs),
            )
        )
    return native.ExactProducts(found, groups)
