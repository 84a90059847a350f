"""Weight gradients by Winograd's method against torch in double precision."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tacit.clipping.layers.choice import Chooser
from tacit.clipping.layers.conv_geometry import Geometry, Problem
from tacit.clipping.layers.conv_native import (
    by_winograd,
    norms_by_winograd,
    suits_winograd,
    summed_by_winograd,
)
from tacit.clipping.layers.kernels import Kernels
from tacit.native import Library

CLOSE = 3e-6


def random_problem(seed: int, channels: int | None = None) -> Problem:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    wide = channels or chance.choice([32, 48, 80])
    outputs, padding = chance.choice([32, 64, 112]), chance.randint(0, 2)
    height, width = chance.randint(3, 9), chance.randint(3, 9)
    records = chance.randint(1, 30)
    x = torch.randn(records, wide, height, width)
    g = torch.randn(records, outputs, height + 2 * padding - 2, width + 2 * padding - 2)
    if seed % 2:
        x, g = (t.contiguous(memory_format=torch.channels_last) for t in (x, g))
    geometry = Geometry((1, 1), (padding, padding), (1, 1), 1)
    return Problem(x, g, (outputs, wide, 3, 3), geometry, records)


def exact_gradients(problem: Problem) -> Tensor:
    weight = torch.empty(problem.kernel, dtype=torch.float64)
    x, g, geometry = problem.x.double(), problem.g.double(), problem.geometry
    each = zip(x.split(1), g.split(1), strict=True)
    return torch.stack([geometry.backward(*pair, weight, (False, True))[1] for pair in each])


def assert_near(found: Tensor, exact: Tensor) -> None:
    atol = CLOSE * float(exact.abs().max())
    torch.testing.assert_close(found.double(), exact, rtol=CLOSE, atol=atol)


@pytest.mark.parametrize("seed", range(16))
def test_gradients_norms_and_sums(kernels: Library, seed: int) -> None:
    problem = random_problem(seed)
    exact, factors = exact_gradients(problem), torch.rand(problem.records)
    assert suits_winograd(problem)
    written = by_winograd(problem)
    assert_near(written.per_record(), exact)
    assert_near(written.squares, exact.flatten(1).square().sum(1))
    assert torch.equal(norms_by_winograd(problem), written.squares)
    weighted = torch.einsum("r,r...->...", factors.double(), exact)
    assert_near(summed_by_winograd(problem, factors), weighted)
    assert_near(written.weighted(factors), weighted)


def test_sums_of_more_tiles_than_are_added_up_at_once(kernels: Library) -> None:
    torch.manual_seed(0)
    x, g = torch.randn(70, 32, 6, 6), torch.randn(70, 32, 6, 6)
    problem = Problem(x, g, (32, 32, 3, 3), Geometry((1, 1), (1, 1), (1, 1), 1), 35)
    factors = torch.rand(35)
    each = exact_gradients(problem).unflatten(0, (35, 2)).sum(1)
    found = summed_by_winograd(problem, factors)
    assert_near(found, torch.einsum("r,r...->...", factors.double(), each))


def test_a_large_gradient_is_measured_to_the_last_digits(kernels: Library) -> None:
    torch.manual_seed(1)
    x, g = torch.randn(1, 256, 4, 4), torch.randn(1, 256, 4, 4)
    problem = Problem(x, g, (256, 256, 3, 3), Geometry((1, 1), (1, 1), (1, 1), 1), 1)
    exact = exact_gradients(problem).square().sum()
    assert abs(float(norms_by_winograd(problem)) / float(exact) - 1) < CLOSE


@pytest.mark.parametrize(
    "changed",
    [
        {"kernel": (32, 32, 3, 1)},
        {"kernel": (32, 24, 3, 3)},
        {"kernel": (16, 64, 3, 3)},
        {"geometry": Geometry((2, 2), (1, 1), (1, 1), 1)},
        {"geometry": Geometry((1, 1), (1, 0), (1, 1), 1)},
        {"geometry": Geometry((1, 1), (1, 1), (2, 2), 1)},
        {"geometry": Geometry((1, 1), (1, 1), (1, 1), 2)},
    ],
)
def test_other_convolutions_are_left_to_others(changed: dict[str, Any]) -> None:
    x, geometry = torch.zeros(1, 32, 4, 4), Geometry((1, 1), (1, 1), (1, 1), 1)
    usual = Problem(x, x, (32, 32, 3, 3), geometry, 1)
    assert not suits_winograd(replace(usual, **changed))
    assert not suits_winograd(replace(usual, x=x.double(), g=x.double()))


def test_what_is_measured_is_what_is_added_up(kernels: Library) -> None:
    problem = random_problem(3, channels=64)
    chooser = Chooser(deterministic=True, memory_ceiling=0)
    held = Kernels(problem, chooser)
    norms = held.squared_norms().sqrt()
    total = torch.zeros(problem.kernel)
    held.add_weighted(1 / norms, total)
    exact = exact_gradients(problem)
    unit = exact / exact.flatten(1).norm(dim=1)[:, None, None, None, None]
    assert_near(total, unit.sum(0))


def test_the_number_of_threads_changes_no_bit(kernels: Library) -> None:
    problem = random_problem(5)
    factors = torch.rand(problem.records)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append((by_winograd(problem).joined(), summed_by_winograd(problem, factors)))
    finally:
        torch.set_num_threads(before)
    for parts, total in found[1:]:
        assert torch.equal(parts, found[0][0]) and torch.equal(total, found[0][1])
