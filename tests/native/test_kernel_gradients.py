"""Compiled gradients of convolution kernels, their norms and sums, against double precision."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tacit import native
from tacit.clipping.layers.conv_geometry import Geometry, Problem
from tacit.clipping.layers.conv_native import (
    by_kernels,
    norms_by_kernels,
    suits_kernels,
    summed_by_kernels,
    sums_by_kernels,
)
from tacit.native import Library

LAST = torch.channels_last
IMAGES = 3


def random_problem(seed: int, dtype: torch.dtype = torch.float32, images: int = IMAGES) -> Problem:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    kernel = chance.randint(1, 6), chance.randint(1, 6)
    stride = chance.randint(1, 3), chance.randint(1, 3)
    padding = chance.randint(0, 2), chance.randint(0, 2)
    dilation = chance.choice([1, 1, 2]), chance.choice([1, 1, 2])
    space = [d * (k - 1) + 1 + chance.randint(0, 6) for k, d in zip(kernel, dilation, strict=True)]
    inputs, outputs = chance.choice([1, 2, 3, 16, 33]), chance.choice([1, 6, 16, 17, 32, 48, 70])
    x = torch.randn(images, inputs, *space, dtype=dtype)
    weight = torch.randn(outputs, inputs, *kernel, dtype=dtype)
    g = torch.randn_like(F.conv2d(x, weight, None, stride, padding, dilation))
    if seed % 2:
        x, g = x.contiguous(memory_format=LAST), g.contiguous(memory_format=LAST)
    return Problem(x, g, tuple(weight.shape), Geometry(stride, padding, dilation, 1), images)


def by_loop(problem: Problem) -> Tensor:
    weight = torch.empty(problem.kernel, dtype=torch.float64)
    x, g = problem.x.double(), problem.g.double()
    parts = [
        problem.geometry.backward(x[i : i + 1], g[i : i + 1], weight, (False, True))[1]
        for i in range(len(x))
    ]
    return torch.stack(parts)


@pytest.mark.parametrize("seed", range(40))
def test_kernel_gradients_and_their_norms(kernels: Library, seed: int) -> None:
    problem = random_problem(seed)
    expected = by_loop(problem)
    assert suits_kernels(problem)
    written = by_kernels(problem)
    close(written.per_record(), expected)
    close(written.squares, expected.flatten(1).square().sum(1))
    assert torch.equal(norms_by_kernels(problem), written.squares)
    assert kernels is native.active()


def test_pixels_that_no_window_meets_count_for_nothing(kernels: Library) -> None:
    torch.manual_seed(1)
    x, g = torch.randn(3, 6, 8, 8), torch.randn(3, 16, 3, 3)
    problem = Problem(x, g, (16, 6, 2, 2), Geometry((3, 3), (0, 0), (1, 1), 1), 3)
    before = summed_by_kernels(problem, torch.ones(3))
    x[:, :, 2::3] = x[:, :, :, 2::3] = torch.inf
    assert torch.equal(summed_by_kernels(problem, torch.ones(3)), before)
    assert kernels is native.active()


@pytest.mark.parametrize("seed", range(40))
def test_weighted_sums_of_kernel_gradients(kernels: Library, seed: int) -> None:
    images = random.Random(seed).choice([1, 3, 15, 16, 40])
    problem = random_problem(seed, images=images)
    factors = torch.rand(2 * images, generator=fixed())[::2]
    expected = torch.tensordot(factors.double(), by_loop(problem), 1)
    found = summed_by_kernels(problem, factors)
    close(found, expected)
    if images == 40:  # two for each record
        halves = replace(problem, records=20)
        twice = factors[:20].repeat_interleave(2)
        assert torch.equal(
            summed_by_kernels(halves, factors[:20]), summed_by_kernels(problem, twice)
        )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert torch.equal(summed_by_kernels(problem, factors), found)
    finally:
        torch.set_num_threads(threads)
    assert kernels is native.active()


def test_sums_of_many_large_images(kernels: Library) -> None:
    """More than are taken together."""
    torch.manual_seed(2)
    x, g = (torch.randn(48, n, 20, 20).contiguous(memory_format=LAST) for n in (32, 32))
    problem = Problem(x, g, (32, 32, 5, 5), Geometry((1, 1), (2, 2), (1, 1), 1), 48)
    factors = torch.rand(48)
    close(
        summed_by_kernels(problem, factors),
        problem_sum(problem, factors),
    )
    assert kernels is native.active() and sums_by_kernels(problem)


def problem_sum(problem: Problem, factors: Tensor) -> Tensor:
    wide = replace(problem, x=problem.x.double(), g=problem.g.double())
    return wide.summed(factors, torch.empty(problem.kernel, dtype=torch.float64))


def test_how_many_records_there_are_does_not_decide_who_adds_up(kernels: Library) -> None:
    for outputs, ours in ((32, True), (6, False), (512, False)):
        x = torch.randn(50, 16, 9, 9).contiguous(memory_format=LAST)
        g = torch.randn(50, outputs, 3, 3).contiguous(memory_format=LAST)
        problem = Problem(x, g, (outputs, 16, 4, 4), Geometry((2, 2), (0, 0), (1, 1), 1), 50)
        assert {sums_by_kernels(problem.part(0, n)) for n in (1, 7, 50)} == {ours}
    assert kernels is native.active()


def close(found: Tensor, expected: Tensor, rtol: float = 3e-6) -> None:
    atol = 3e-6 * float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=atol)


def test_the_number_of_threads_changes_no_bit(kernels: Library) -> None:
    problem, before = random_problem(5), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append((by_kernels(problem).joined(), norms_by_kernels(problem)))
    finally:
        torch.set_num_threads(before)
    for one, *others in zip(*results, strict=True):
        assert all(torch.equal(one, other) for other in others)
    assert kernels is native.active()


def test_double_precision_is_left_to_torch() -> None:
    assert not suits_kernels(random_problem(1, torch.float64))


def fixed() -> torch.Generator:
    return torch.Generator().manual_seed(1)
