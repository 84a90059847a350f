"""Norms from inner products between pixels against gradients in double precision."""

from __future__ import annotations

import random

import pytest
import torch

from tacit import native
from tacit.clipping.layers.conv_geometry import Geometry, Problem
from tacit.clipping.layers.conv_native import norms_by_compiled_pixels, suits_pixels
from tacit.native import Library
from tacit.native.structures import Windows


@pytest.mark.parametrize("seed", range(30))
def test_norms_and_sizes_of_parts(kernels: Library, seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    channels, outputs = chance.randint(1, 70), chance.randint(1, 70)
    kernel = (chance.randint(1, 4), chance.randint(1, 5))
    padding = (chance.randint(0, 3), chance.randint(0, 3))
    height, width = (
        chance.randint(max(1, k - 2 * p), 9) for k, p in zip(kernel, padding, strict=True)
    )
    x = torch.randn(3, channels, height, width)
    rows, columns = (
        n + 2 * p - k + 1 for n, p, k in zip((height, width), padding, kernel, strict=True)
    )
    g = torch.randn(3, outputs, rows, columns)
    problem = Problem(x, g, (outputs, channels, *kernel), Geometry((1, 1), padding, (1, 1), 1), 3)
    assert suits_pixels(problem)
    last = (t.permute(0, 2, 3, 1).contiguous() for t in (x, g))
    squares, parts = kernels.pixel_norms(*last, Windows(kernel, (1, 1), padding, (1, 1)))
    windows = torch.nn.functional.unfold(x.double(), kernel, padding=padding)
    gradients = torch.einsum("rwp,rop->row", windows, g.double().flatten(2))
    expected = gradients.flatten(1).square().sum(1)
    torch.testing.assert_close(squares, expected, rtol=1e-11, atol=0)
    sizes = windows.norm(dim=1) * g.double().flatten(2).norm(dim=1)
    torch.testing.assert_close(parts, sizes.sum(1), rtol=1e-11, atol=0)
    found = norms_by_compiled_pixels(problem)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("difference", [1e-5, 1e-4, 1e-3])
def test_norms_of_gradients_that_cancel_are_right(kernels: Library, difference: float) -> None:
    torch.manual_seed(0)
    x, g = torch.randn(20, 12, 1, 1), torch.randn(20, 40, 1, 1).expand(20, 40, 1, 2)
    both = 1e3 * torch.cat((x, -x * (1 + difference)), 3)
    problem = Problem(both, g, (40, 12, 1, 1), Geometry((1, 1), (0, 0), (1, 1), 1), 20)
    exact = torch.einsum("rcp,rop->roc", both.double().flatten(2), g.double().flatten(2))
    found = norms_by_compiled_pixels(problem).double()
    expected = exact.flatten(1).square().sum(1)
    assert bool((found >= (1 - 1e-6) * expected).all()) and kernels is native.active()


def test_parts_that_cancel_are_not_taken_for_nothing(kernels: Library) -> None:
    x = torch.full((1, 8, 1, 2), 1e5)
    g = torch.tensor([1.0, -1.0]).view(1, 1, 1, 2) * 1e3
    problem = Problem(x, g, (1, 8, 1, 1), Geometry((1, 1), (0, 0), (1, 1), 1), 1)
    assert float(norms_by_compiled_pixels(problem)) > 0


def test_the_number_of_threads_changes_no_bit(kernels: Library) -> None:
    x, g = torch.randn(9, 6, 6, 20), torch.randn(9, 6, 6, 24)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(
                torch.stack(kernels.pixel_norms(x, g, Windows((3, 3), (1, 1), (1, 1), (1, 1))))
            )
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_other_steps_are_left_to_others() -> None:
    x = torch.zeros(1, 4, 5, 5)
    for geometry in (Geometry((2, 1), (1, 1), (1, 1), 1), Geometry((1, 1), (1, 1), (1, 2), 1)):
        assert not suits_pixels(Problem(x, x, (4, 4, 3, 3), geometry, 1))


@pytest.mark.parametrize(("height", "width"), [(5, 7), (9, 9), (7, 7)])
def test_what_lay_in_memory_before_does_not_matter(
    kernels: Library, height: int, width: int
) -> None:
    x, g = torch.randn(4, height, width, 20), torch.randn(4, height, width, 24)
    windows = Windows((3, 3), (1, 1), (1, 1), (1, 1))
    expected = kernels.pixel_norms(x, g, windows)[0]
    for size in range(1 << 12, 1 << 17, 1 << 12):
        torch.full((size,), torch.nan, dtype=torch.float64)  # freed at once
        assert torch.equal(kernels.pixel_norms(x, g, windows)[0], expected)
