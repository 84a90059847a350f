"""Norms and weighted sums of outer products, of several layers at once, in double precision."""

from __future__ import annotations

import math
import random
import struct

import pytest
import torch
from torch import Tensor

from tacit.native import Library, Product, Products, Rows, rows_of


@pytest.mark.parametrize("seed", range(24))
def test_several_layers_of_outer_products_at_once(kernels: Library, seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    records, groups = chance.choice([0, 1, 7, 70, 513, 1100]), chance.choice([1, 3])
    factors = torch.rand(records, groups)
    squares = torch.zeros(records, groups, dtype=torch.float64)
    vector, end = torch.randn(200_000), 0
    products, sums = [], []

    def place_for(*shape: int, kept: bool) -> tuple[int, Tensor, Tensor | int]:
        """Where a sum goes, what lies there, and what that is added to."""
        nonlocal end
        start = end
        end += math.prod(shape) + 5
        part = vector[start : start + math.prod(shape)].view(shape)
        return start, part, part.double() if kept else 0

    for place in range(4):
        inputs, outputs = (chance.choice([1, 2, 7, 16, 33, 70, 150]) for _ in range(2))
        outputs += 800 * (seed % 6 == place)
        x, g = torch.randn(records, inputs + 3)[:, 2:-1], torch.randn(records, outputs + 1)[:, 1:]
        group, weighted, shifted = chance.randrange(groups), place != 2, place != 1
        product = Product(rows(g), group)
        norms = torch.zeros(records, dtype=torch.float64)
        scaled = (g * factors[:, group, None]).double()
        if weighted:
            kept = bool(place % 2)
            at, part, before = place_for(outputs, inputs, kept=kept)
            product = product._replace(x=rows(x), at=at, kept=kept)
            sums.append((part, before + scaled.t() @ x.double()))
            norms += x.double().square().sum(1)
        if shifted:
            kept = bool(place // 2)
            at, part, before = place_for(outputs, kept=kept)
            product = product._replace(shift_at=at, shift_kept=kept)
            sums.append((part, before + scaled.sum(0)))
            norms += 1
        squares[:, group] += norms * g.double().square().sum(1)
        products.append(product)
    described = Products(products, vector, records, groups)
    found_squares, finite = kernels.outer_squares(described)
    torch.testing.assert_close(found_squares.double(), squares, rtol=1e-5, atol=0)
    assert finite
    untouched = vector.clone()
    kernels.outer_sums(described, factors)
    for found, expected in sums:
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)
        at = found.storage_offset()
        untouched[at : at + found.numel()] = found.flatten()
    assert torch.equal(vector, untouched)


def rows(tensor: Tensor) -> Rows:
    found = rows_of(tensor)
    assert found is not None
    return found


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_norms_that_are_not_finite_are_reported(kernels: Library, value: float) -> None:
    x, g = torch.ones(70, 3), torch.ones(70, 4)
    vector = torch.zeros(16)

    def finite() -> bool:
        products = Products([Product(rows(g), 1, rows(x), 0, False, 12)], vector, 70, 2)
        squares, found = kernels.outer_squares(products)
        assert found == bool(squares.isfinite().all())
        return found

    assert finite()
    g[69, 3] = value
    assert not finite()


def test_outer_products_have_the_same_bits_with_any_number_of_threads(kernels: Library) -> None:
    torch.manual_seed(1)
    x, g, factors = torch.randn(70, 33), torch.randn(70, 901), torch.rand(70, 1)

    def found() -> list[Tensor]:
        vector = torch.full((901 * 34,), torch.nan)
        products = Products([Product(rows(g), 0, rows(x), 0, False, 901 * 33)], vector, 70, 1)
        squares, _ = kernels.outer_squares(products)
        kernels.outer_sums(products, factors)
        return [squares, vector]

    together, threads = found(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = found()
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, alone, together))


def test_rows_that_kernels_cannot_read_are_none() -> None:
    whole = torch.zeros(3, 4)
    for tensor in (whole.double(), torch.zeros(4, 3).t(), whole[0], torch._neg_view(whole)):
        assert rows_of(tensor) is None
    found = rows_of(whole[:, 1:])
    assert found is not None and found[1:] == (3, 3, 4)


def test_outer_products_that_would_be_written_elsewhere_are_refused() -> None:
    g, fewer, vector = rows(torch.zeros(3, 4)), rows(torch.zeros(2, 4)), torch.zeros(20)
    Products([Product(g, 0, g, 0, False, 16)], vector, 3, 1)
    for product in (
        Product(g, 1),
        Product(g, -1),
        Product(fewer, 0, shift_at=0),
        Product(g, 0, fewer),
        Product(g, 0, g, 5),
        Product(g, 0, g, -1),
        Product(g, 0, shift_at=17),
        Product(g, 0, shift_at=-1),
    ):
        with pytest.raises(AssertionError):
            Products([product], vector, 3, 1)
    for elsewhere in (vector.double(), vector.view(4, 5), torch.zeros(40)[::2]):
        with pytest.raises(AssertionError):
            Products([Product(g, 0, g)], elsewhere, 3, 1)


def test_rows_are_read_where_they_lie_when_kernels_are_called(kernels: Library) -> None:
    """Memory may be moved between the backward pass that leaves rows and their sum."""
    tensor, vector = torch.ones(3, 4), torch.zeros(4)
    g, before = rows(tensor), tensor.data_ptr()
    tensor.share_memory_()
    assert tensor.data_ptr() != before
    products = Products([Product(g, 0, shift_at=0)], vector, 3, 1)
    assert struct.unpack_from("4q", products.described)[1] == tensor.data_ptr()
    tensor.fill_(2.0)
    kernels.outer_sums(products, torch.ones(3, 1))
    assert vector.tolist() == [6.0] * 4
