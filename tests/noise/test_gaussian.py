"""Noise on a clipped sum: the scale that the bound asks for, and nothing else accepted."""

import math
from typing import Any

import pytest
import torch

from tacit.clipping.contract import ClippedSum, Layout
from tacit.errors import ArgumentError, NoProofError
from tacit.noise.gaussian import GaussianNoise, noised
from tacit.noise.source import RandomSource
from tacit.privacy.relations import Relation

SIZES = (60_000, 40_000)


def zero_sum(bounds: tuple[float, ...], shares: tuple[float, ...]) -> ClippedSum:
    groups = (0, len(bounds) - 1)
    layout = Layout(("a", "b"), tuple(torch.Size([n]) for n in SIZES), groups)
    return ClippedSum(torch.zeros(sum(SIZES)), layout, bounds, shares)


def assert_spread(sample: torch.Tensor, expected: float) -> None:
    z = (float(sample.double().square().mean()) / expected**2 - 1) / math.sqrt(2 / len(sample))
    assert abs(z) < 5


TIMES = {
    Relation.ADD_OR_REMOVE_ONE: 1.0,
    Relation.ZERO_OUT: 1.0,
    Relation.REPLACE_ONE: 2.0,
    Relation.REPLACE_FEATURES: 2.0,
}


@pytest.mark.parametrize("relation", list(Relation))
def test_sensitivity_doubles_when_a_record_is_replaced(relation: Relation) -> None:
    """One clipped gradient leaves the sum and another one, possibly opposite, enters it."""
    clipped = zero_sum((0.5, 3.0), (0.2, 0.8))
    assert clipped.sensitivity(relation) == (0.5 * TIMES[relation], 3.0 * TIMES[relation])


@pytest.mark.parametrize(("relation", "times"), list(TIMES.items()))
def test_scale_is_multiplier_times_sensitivity_over_the_constant(
    relation: Relation, times: float
) -> None:
    noise = GaussianNoise(RandomSource.from_seed(0), 1.5, relation)
    private = noise.privatise(zero_sum((0.3,), (1.0,)), 0, denominator=64.0)
    assert_spread(private.vector, 1.5 * 0.3 * times / 64)
    with pytest.raises(AssertionError):
        assert_spread(private.vector * 0.97, 1.5 * 0.3 * times / 64)


def test_each_group_gets_its_own_scale() -> None:
    noise = GaussianNoise(RandomSource.from_seed(0), 2.0)
    private = noise.privatise(zero_sum((0.5, 3.0), (0.2, 0.8)), 0, denominator=1.0)
    first, second = private.vector.split(SIZES)
    assert_spread(first, 2.0 * 0.5 / math.sqrt(0.2))
    assert_spread(second, 2.0 * 3.0 / math.sqrt(0.8))


def test_the_sum_itself_is_kept() -> None:
    clipped = zero_sum((1.0,), (1.0,))
    shifted = ClippedSum(clipped.vector + 2.0, clipped.layout, (1.0,), (1.0,))
    noise = GaussianNoise(RandomSource.from_seed(0), 1e-6)
    moved = noise.privatise(shifted, 3, 10.0).vector
    torch.testing.assert_close(moved, torch.full_like(moved, 0.2), rtol=0, atol=1e-5)


def test_different_sums_never_share_noise_and_equal_ones_always_do() -> None:
    clipped, same, other = (zero_sum((1.0,), (1.0,)) for _ in range(3))
    other.vector[7] += 1e-6
    noise = GaussianNoise(RandomSource.from_seed(0), 1.0)
    first, again, second = (noise.privatise(c, 5, 1.0).vector for c in (clipped, same, other))
    assert torch.equal(first, again)
    assert abs(float((first * second).mean())) * math.sqrt(len(first)) < 5


def test_nothing_keeps_the_sum_without_noise() -> None:
    clipped = zero_sum((1.0,), (1.0,))
    private = GaussianNoise(RandomSource.from_seed(0), 1.0).privatise(clipped, 0, 1.0)
    assert private.vector.data_ptr() == clipped.vector.data_ptr()
    assert_spread(clipped.vector, 1.0)


def test_a_sum_is_noised_only_once() -> None:
    clipped = zero_sum((1.0,), (1.0,))
    noise = GaussianNoise(RandomSource.from_seed(0), 1.0)
    released = noise.privatise(clipped, 0, 1.0).vector.clone()
    with pytest.raises(NoProofError, match="noised before"):
        noise.privatise(clipped, 1, 1.0)
    assert torch.equal(clipped.vector, released)


def test_noise_on_a_vector_of_the_callers_leaves_that_vector_alone() -> None:
    values = torch.arange(6.0).view(2, 3)
    found = noised(values, 1.0, "a test", RandomSource.from_seed(0))
    assert found.shape == values.shape
    assert not torch.equal(found, values)
    assert torch.equal(values, torch.arange(6.0).view(2, 3))


def test_steps_get_fresh_noise() -> None:
    noise = GaussianNoise(RandomSource.from_seed(0), 1.0)
    first, second = (noise.privatise(zero_sum((1.0,), (1.0,)), t, 1.0).vector for t in (0, 1))
    assert abs(float((first * second).mean())) * math.sqrt(len(first)) < 5


def test_a_bare_tensor_is_refused() -> None:
    bare: Any = torch.zeros(3)
    with pytest.raises(NoProofError, match="ClippedSum"):
        GaussianNoise(RandomSource.from_seed(0), 1.0).privatise(bare, 0, 1.0)


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.inf, math.nan])
def test_impossible_noise_is_refused(multiplier: float) -> None:
    with pytest.raises(ArgumentError, match="noise"):
        GaussianNoise(RandomSource.from_seed(0), multiplier)
