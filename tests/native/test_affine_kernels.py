"""Rows times a matrix with what follows, against torch in double precision."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tacit.native import Layer, Library


def forward(
    kernels: Library, x: Tensor, weight: Tensor, bias: Tensor | None, rectified: bool = False
) -> Tensor | None:
    found = kernels.affine(x, [Layer(weight, bias, rectified)])
    return None if found is None else found[0]


def backward(
    kernels: Library, g: Tensor, weight: Tensor, above: Tensor | None = None
) -> Tensor | None:
    found = kernels.affine_back(g, [(weight, above)])
    return None if found is None else found[0]


@pytest.mark.parametrize("seed", range(24))
def test_linear_layers_there_and_back(kernels: Library, seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    rows = chance.choice([1, 2, 7, 8, 9, 70])
    inputs, outputs = (chance.choice([1, 3, 16, 47, 48, 70, 150]) for _ in range(2))
    inputs += 1100 * (seed % 6 == 0)
    outputs += 2100 * (seed % 6 == 1)
    x, g = torch.randn(rows, inputs + 3)[:, 2:-1], torch.randn(rows, outputs + 1)[:, 1:]
    weight = torch.randn(outputs, inputs + 2)[:, 1:-1]
    bias = torch.randn(outputs) if seed % 3 else None
    above = torch.randn(rows, inputs + 1)[:, 1:].relu() if seed % 2 else None
    rectified = bool(seed % 4)

    expected = torch.nn.functional.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    found = forward(kernels, x, weight, bias, rectified)
    assert found is not None
    _assert_close(found, expected.relu() if rectified else expected, inputs)
    back = g.double() @ weight.double()
    found = backward(kernels, g, weight, above)
    assert found is not None
    _assert_close(found, back if above is None else back * (above > 0), outputs)


def _assert_close(found: Tensor, expected: Tensor, terms: int) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=2e-6 * terms**0.5)


def test_a_row_has_the_same_bits_whatever_others_there_are(kernels: Library) -> None:
    torch.manual_seed(1)
    x, weight, bias = torch.randn(37, 300), torch.randn(130, 300), torch.randn(130)
    g, above = torch.randn(37, 130), torch.randn(37, 300)
    threads = torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        try:
            whole, back = forward(kernels, x, weight, bias), backward(kernels, g, weight, above)
        finally:
            torch.set_num_threads(threads)
        assert whole is not None and back is not None
        for row in (0, 7, 8, 36):
            one = slice(row, row + 1)
            alone = forward(kernels, x[one], weight, bias)
            alone_back = backward(kernels, g[one], weight, above[one])
            assert alone is not None and alone_back is not None
            assert torch.equal(whole[one], alone) and torch.equal(back[one], alone_back)


def test_what_is_no_number_stays_in_its_row_and_is_treated_as_torch_does(kernels: Library) -> None:
    torch.manual_seed(2)
    x, weight, g = torch.randn(11, 40), torch.randn(20, 40), torch.randn(11, 20)
    x[3, 5], x[4, 6], g[5, 7] = torch.nan, torch.inf, torch.nan
    above = torch.randn(11, 40).relu()
    above[6, 8] = torch.nan
    expected = torch.nn.functional.linear(x, weight).relu()
    found = forward(kernels, x, weight, None, True)
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-4, atol=1e-4)
    back = torch.ops.aten.threshold_backward(g @ weight, above, 0)
    found = backward(kernels, g, weight, above)
    torch.testing.assert_close(found, back, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_empty_batches_and_layers(kernels: Library) -> None:
    for rows, inputs, outputs in ((0, 5, 3), (4, 0, 3), (4, 5, 0)):
        x, weight, bias = (
            torch.randn(rows, inputs),
            torch.randn(outputs, inputs),
            torch.ones(outputs),
        )
        found = forward(kernels, x, weight, bias)
        assert found is not None and found.shape == (rows, outputs)
        if not inputs:
            assert bool((found == 1).all())
        back = backward(kernels, torch.randn(rows, outputs), weight)
        assert back is not None and back.shape == (rows, inputs)
        assert outputs or not bool(back.any())


@pytest.mark.parametrize(
    ("x", "weight", "bias"),
    [
        (torch.ones(2, 3).double(), torch.ones(4, 3), None),
        (torch.ones(2, 3), torch.ones(4, 3).double(), None),
        (torch.ones(3, 2).t(), torch.ones(4, 3), None),
        (torch.ones(2, 3), torch.ones(3, 4).t(), None),
        (torch.ones(2, 3, 1), torch.ones(4, 3), None),
        (torch.ones(2, 5), torch.ones(4, 3), None),
        (torch.ones(2, 3), torch.ones(4, 3), torch.ones(3)),
        (torch.ones(2, 3), torch.ones(4, 3), torch.ones(4, 1)),
        (torch.ones(2, 3), torch.ones(4, 3), torch.ones(4).half()),
        (torch.ones(2, 3), torch.ones(4, 3), torch.ones(8)[::2]),
        (torch._neg_view(torch.ones(2, 3)), torch.ones(4, 3), None),
        (torch.ones(2, 3), torch._neg_view(torch.ones(4, 3)), None),
        (torch.ones(2, 3), torch.ones(4, 3), torch._neg_view(torch.ones(4))),
    ],
)
def test_what_the_kernels_cannot_read_is_left_to_torch(
    kernels: Library, x: Tensor, weight: Tensor, bias: Tensor | None
) -> None:
    assert forward(kernels, x, weight, bias) is None


def test_gradients_that_the_kernels_cannot_read_are_left_to_torch(kernels: Library) -> None:
    weight = torch.ones(4, 3)
    assert backward(kernels, torch.ones(2, 3), weight) is None
    assert backward(kernels, torch.ones(4, 2).t(), weight) is None
    assert backward(kernels, torch.ones(2, 4), weight, torch.ones(2, 4)) is None
    assert backward(kernels, torch.ones(2, 4), weight, torch.ones(2, 3).double()) is None


def test_layers_that_follow_each_other_have_the_bits_that_each_has_alone(kernels: Library) -> None:
    torch.manual_seed(3)
    sizes = (70, 150, 33, 9)
    x, g = torch.randn(37, sizes[0]), torch.randn(37, sizes[-1])
    layers = [
        Layer(torch.randn(outputs, inputs), torch.randn(outputs) if place else None, place < 2)
        for place, (inputs, outputs) in enumerate(pairwise(sizes))
    ]
    together = kernels.affine(x, layers)
    assert together is not None
    inputs = [x, *together[:-1]]
    for layer, given, found in zip(layers, inputs, together, strict=True):
        alone = forward(kernels, given, *layer)
        assert alone is not None and torch.equal(alone, found)
    steps = [(layer.weight, given) for layer, given in zip(layers, inputs, strict=True)][::-1]
    back = kernels.affine_back(g, steps)
    assert back is not None
    for (weight, above), given, found in zip(steps, [g, *back[:-1]], back, strict=True):
        alone = backward(kernels, given, weight, above)
        assert alone is not None and torch.equal(alone, found)


def test_layers_that_do_not_fit_each_other_are_left_to_torch(kernels: Library) -> None:
    first, second = Layer(torch.ones(4, 3)), Layer(torch.ones(2, 5))
    assert kernels.affine(torch.ones(2, 3), [first, second]) is None
    steps = [(layer.weight, None) for layer in (second, first)]
    assert kernels.affine_back(torch.ones(2, 2), steps) is None
