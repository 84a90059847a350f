"""Norms and weighted sums of outer products, of several layers at once, in double precision."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from tacit.native import Library, Product, Products


@pytest.mark.parametrize("seed", range(24))
def test_several_layers_of_outer_products_at_once(kernels: Library, seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    records, groups = chance.choice([0, 1, 7, 70, 513, 1100]), chance.choice([1, 3])
    factors = torch.rand(records, groups)
    squares = torch.zeros(records, groups, dtype=torch.float64)
    products, sums = [], []
    for place in range(4):
        inputs, outputs = (chance.choice([1, 2, 7, 16, 33, 70, 150]) for _ in range(2))
        outputs += 800 * (seed % 6 == place)
        x, g = torch.randn(records, inputs + 3)[:, 2:-1], torch.randn(records, outputs + 1)[:, 1:]
        group, weighted, shifted = chance.randrange(groups), place != 2, place != 1
        product = Product(g, group)
        norms = torch.zeros(records, dtype=torch.float64)
        scaled = (g * factors[:, group, None]).double()
        if weighted:
            product.x, product.kept = x, bool(place % 2)
            product.total = torch.randn(outputs, inputs)
            before = product.total.clone() if product.kept else 0
            sums.append((product.total, before + scaled.t() @ x.double()))
            norms += x.double().square().sum(1)
        if shifted:
            product.shift, product.shift_kept = torch.randn(outputs), bool(place // 2)
            before = product.shift.clone() if product.shift_kept else 0
            sums.append((product.shift, before + scaled.sum(0)))
            norms += 1
        squares[:, group] += norms * g.double().square().sum(1)
        products.append(product)
    described = Products(products, records, groups)
    found_squares = kernels.outer_squares(described).double()
    torch.testing.assert_close(found_squares, squares, rtol=1e-5, atol=0)
    kernels.outer_sums(described, factors)
    for found, expected in sums:
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


def test_outer_products_have_the_same_bits_with_any_number_of_threads(kernels: Library) -> None:
    torch.manual_seed(1)
    x, g, factors = torch.randn(70, 33), torch.randn(70, 901), torch.rand(70, 1)

    def found() -> list[Tensor]:
        total, shift = torch.full((901, 33), torch.nan), torch.full((901,), torch.nan)
        products = Products([Product(g, 0, x, total, False, shift)], 70, 1)
        squares = kernels.outer_squares(products)
        kernels.outer_sums(products, factors)
        return [squares, total, shift]

    together, threads = found(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = found()
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, alone, together))


def test_outer_products_that_kernels_cannot_read_are_refused() -> None:
    rows, total = torch.zeros(3, 4), torch.zeros(4, 4)
    for product in (
        Product(rows.double(), 0, shift=total[0]),
        Product(torch.zeros(4, 3).t(), 0, shift=total[0]),
        Product(rows[:2], 0, shift=total[0]),
        Product(rows, 1, shift=total[0]),
        Product(rows, 0, shift=total[:, 0]),
        Product(rows, 0, rows, total[:3]),
        Product(rows, 0, rows),
    ):
        with pytest.raises(AssertionError):
            Products([product], 3, 1)
