"""Composition of laws on grids against convolutions of positive terms and closed forms."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.privacy import gaussian, pld
from tacit.privacy.gaussian_pair import GaussianPair
from tacit.privacy.loss_points import PointLoss, Points
from tacit.privacy.pld import ComposedLoss, Factor, compose
from tacit.privacy.tilted import TiltedLaw

Array = NDArray[np.float64]
STEP = 0.01


def privacy_loss(index: Array, seed: int, infinite: float = 0.0) -> PointLoss:
    """A random law that is the loss of some pair: the second member has no more mass than one."""
    losses = index * STEP
    mass = np.random.default_rng(seed).random(len(index)) * np.exp(-losses / 2 - losses**2)
    mass /= mass.sum()
    excess = float(mass @ np.exp(-losses))
    top = int(np.argmax(losses))
    if excess > 1:  # move mass to the largest loss until the second member fits
        share = (excess - 1) / (excess - math.exp(-losses[top])) * 1.0001
        mass = mass * (1 - share)
        mass[top] += share
    return PointLoss(index, mass * (1 - infinite), infinite)


def total(factors: list[Factor]) -> tuple[Array, Array, float]:
    """Losses of everything together, their probabilities, and that of an infinite one."""
    first, mass, finite = 0, np.ones(1), 1.0
    for factor in factors:
        index = factor.law.index
        low = int(index.min())
        one = np.zeros(int(index.max()) - low + 1)
        one[index - low] = factor.law.mass
        for _ in range(factor.count):
            mass = np.convolve(mass, one)
            first += low
        finite *= (1 - factor.law.infinite) ** factor.count
    return (first + np.arange(len(mass))) * STEP, mass, 1 - finite


def exact_delta(factors: list[Factor], epsilon: float) -> float:
    losses, mass, infinite = total(factors)
    return infinite + float(np.maximum(0.0, -np.expm1(epsilon - losses)) @ mass)


FINE = np.arange(-20, 31)
FEW = [Factor(privacy_loss(FINE, 1), 1, 6)]
UNEQUAL = [
    Factor(privacy_loss(FINE, 2), 1, 4),
    Factor(privacy_loss(2 * FINE, 3), 2, 3),
    Factor(privacy_loss(8 * np.arange(-3, 12), 4), 8, 2),
]
LOST = [Factor(privacy_loss(FINE, 5, 1e-7), 1, 3), Factor(privacy_loss(FINE, 6, 1e-8), 1, 2)]
MANY = [Factor(privacy_loss(FINE, seed), 1, 1) for seed in range(12)]


@pytest.mark.parametrize("factors", [FEW, UNEQUAL, LOST, MANY])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4, 0.9, 1.37, 1.7])
def test_delta_of_a_few_laws_is_that_of_their_sum(factors: list[Factor], epsilon: float) -> None:
    found = ComposedLoss(factors, STEP).delta(epsilon)
    true = exact_delta(factors, epsilon)
    assert true * (1 - 1e-12) <= found <= true * (1 + 1.1e-3) + 1e-30


@pytest.mark.parametrize("factors", [FEW, UNEQUAL, LOST, MANY])
@pytest.mark.parametrize("delta", [0.1, 1e-2, 3e-4, 1e-6])
def test_epsilon_of_a_few_laws_is_that_of_their_sum(factors: list[Factor], delta: float) -> None:
    found = ComposedLoss(factors, STEP).epsilon(delta)
    assert exact_delta(factors, found) <= delta * (1 + 1e-12)
    if found > 0:
        assert exact_delta(factors, found - 1e-3) > delta * (1 - 2e-4)


def test_a_delta_below_what_is_infinite_has_no_epsilon() -> None:
    composed = ComposedLoss(LOST, STEP)
    lost = 3e-7 + 2e-8
    assert composed.epsilon(lost * 0.99) == math.inf
    assert math.isfinite(composed.epsilon(lost * 1.2))
    assert composed.delta(1000.0) == pytest.approx(lost, rel=1.1e-3)
    certain = ComposedLoss([Factor(PointLoss(np.zeros(1, int), np.zeros(1) + 0.5, 0.5), 1, 2)], 1.0)
    assert certain.delta(1.0) == 1.0 and certain.epsilon(0.5) == math.inf


def test_a_law_of_no_loss_costs_nothing() -> None:
    nothing = ComposedLoss([Factor(PointLoss(np.zeros(1, int), np.ones(1), 0.0), 1, 100)], STEP)
    assert nothing.epsilon(1e-9) < 1e-6 and nothing.delta(0.1) < 1e-25


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stride", [1, 2])
def test_blocks_on_coarser_grids_are_close_and_never_below(seed: int, stride: int) -> None:
    """So wide a law that its composition does not fit on the fine grid."""
    index = stride * np.arange(-300, 301)
    wide = np.exp(-((np.arange(-300, 301) / 150) ** 2) / 2)
    mass = wide * (1 + np.random.default_rng(seed).random(601))
    mass /= mass.sum()
    step = 1e-3 / stride
    losses = index * step
    shift = math.log(float(mass @ np.exp(-losses)))
    law = PointLoss(index + math.ceil(shift / step / stride) * stride, mass, 0.0)
    factors = [Factor(law, stride, 37), Factor(law, stride, 1), Factor(law, stride, 2)]
    composed = ComposedLoss(factors, step)
    whole = np.ones(1)
    for _ in range(40):
        whole = np.convolve(whole, mass)
    first = 40 * int(law.index[0]) // stride
    at = (first + np.arange(len(whole))) * step * stride
    for epsilon in (0.1, 1.0, 2.5, 4.0):
        true = float(np.maximum(0.0, -np.expm1(epsilon - at)) @ whole)
        assert true * (1 - 1e-9) <= composed.delta(epsilon) <= true * (1 + 5e-3)
    assert composed.epsilon(composed.delta(1.0)) == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("count", [1, 3, 400])
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-20])
def test_steps_without_sampling_cost_what_the_closed_form_says(count: int, delta: float) -> None:
    mu = 1.5 / math.sqrt(count)
    found = compose([(GaussianPair(1 / mu, 1.0, 0.0), count)]).epsilon(delta)
    exact = gaussian.epsilon_of(1.5, delta)
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 5e-4) + 1e-3


def test_unlike_steps_without_sampling_add_up_in_squares() -> None:
    parts = [(0.9, 1), (0.05, 200), (0.5, 3)]
    whole = math.sqrt(sum(n * mu**2 for mu, n in parts))
    composed = compose([(GaussianPair(1 / mu, 1.0, 0.0), n) for mu, n in parts])
    for epsilon in (0.0, 0.5, 2.0, 6.0):
        exact = gaussian.delta_of(whole, epsilon)
        assert exact * (1 - 1e-9) <= composed.delta(epsilon) <= exact * (1 + 5e-3)


def test_losses_too_large_to_represent_cost_everything() -> None:
    composed = compose([(GaussianPair(1.0, 0.1, 0.0), 3), (GaussianPair(0.01, 0.5, 0.0), 1)])
    assert composed.delta(5.0) == 1.0 and composed.epsilon(0.9) == math.inf


@dataclass(frozen=True)
class Recorded:
    """A pair that writes down on which points its loss was put."""

    spread: float
    width: float
    seen: list[tuple[Points, float]] = field(default_factory=list, compare=False, hash=False)

    def span(self, tail: float) -> tuple[float, float]:
        return self.width * math.log10(tail), -self.width * math.log10(tail)

    def variance(self) -> float:
        return self.spread

    def on_points(self, points: Points, tail: float) -> PointLoss:
        self.seen.append((points, tail))
        index = points.index
        return PointLoss(index, np.full(len(index), 1 / len(index)), 0.0)


def test_the_grid_follows_the_variance_of_a_step() -> None:
    """Points whose spacing adds 5e-5 of the variance: a cell of width w adds up to w²/6."""
    first, second = Recorded(0.04, 0.01), Recorded(0.001, 0.01)
    composed = compose([(first, 3), (second, 5)])
    mean = (3 * 0.04 + 5 * 0.001) / 8
    for pair in (first, second):
        ((points, tail),) = pair.seen
        assert points.step == pytest.approx(math.sqrt(6 * 5e-5 * mean)) and tail == 1e-40
    assert first.seen[0][0].levels[0].stride == 1 == second.seen[0][0].levels[0].stride
    assert composed.delta(0.0) < 1
    none = Recorded(0.0, 0.0)
    compose([(none, 2)])
    assert none.seen[0][0].step == 1e-13


def test_a_pair_whose_loss_varies_more_gets_points_further_apart() -> None:
    usual, wider = Recorded(0.01, 0.01), Recorded(0.5, 0.01)
    compose([(usual, 999), (wider, 1)])
    mean = (999 * 0.01 + 0.5) / 1000
    ratio = math.sqrt(0.5 / mean)
    stride = wider.seen[0][0].levels[0].stride
    assert stride == 4 and stride <= ratio < 2 * stride
    far = Recorded(1e-8, 0.5)  # a span of 4 for a mass of 1e-4 would take more than 2^16 points
    compose([(far, 2)])
    step = math.sqrt(6 * 5e-5 * 1e-8)
    stride = far.seen[0][0].levels[0].stride
    assert stride <= 4 / step / 2**16 < 2 * stride


def test_scales_are_powers_of_ten_not_above() -> None:
    for delta, scale in ((1.0, 1.0), (0.5, 0.1), (1e-5, 1e-5), (9.99e-6, 1e-6), (1e-300, 1e-30)):
        assert pld._scale_of(delta) == pytest.approx(scale, rel=1e-12)
    for power in range(-29, 1):
        for delta in (10.0**power, math.nextafter(10.0**power, 0), 3 * 10.0**power):
            assert pld._scale_of(delta) <= delta < 10.0001 * pld._scale_of(delta)


def test_blocks_leave_few_steps_over() -> None:
    for count in (1, 7, 64, 100, 257, 1000):
        for most in (4, 16, 64):
            size = pld._block_size(count, most)
            assert most // 2 < size <= most
            left = [count % each for each in range(most // 2 + 1, most + 1)]
            assert count % size == min(left)
            assert all(count % each > min(left) for each in range(size + 1, most + 1))


ONE = TiltedLaw(np.array([0, 1]), np.array([0.5, 0.5]), 0.0, 0.0, 0.0)


def test_rests_are_gathered_in_blocks_of_at_most_so_many_steps() -> None:
    counts = [3, 5, 7, 1, 1, 8, 2]
    blocks = pld._blocks_of([(ONE, count) for count in counts], 8)
    assert [[count for _, count in block] for block in blocks] == [[3, 5], [7, 1], [1], [8], [2]]
    assert pld._blocks_of([], 8) == []


def test_blocks_off_the_grid_are_counted() -> None:
    even = TiltedLaw(np.array([0, 2, 4]), np.array([0.5, 0.3, 0.2]), 0.0, 0.0, 0.0)
    assert pld._blocks_off_grid([(ONE, 9), (even, 1)], 2, 4) == pytest.approx(0.45 * 3)
    assert pld._blocks_off_grid([(even, 8)], 4, 8) == pytest.approx(0.3)


@pytest.mark.parametrize("seed", range(8))
def test_the_last_grid_is_the_coarsest_that_adds_no_more_than_the_first(seed: int) -> None:
    generator = np.random.default_rng(seed)
    groups: dict[int, list[tuple[TiltedLaw, int]]] = {}
    for stride in (1, 4, 32)[: 1 + seed % 3]:
        for _ in range(2):
            mass = generator.random(9) ** 4
            law = TiltedLaw(stride * np.arange(-4, 5), mass / mass.sum(), 0.0, 0.0, 0.0)
            groups.setdefault(stride, []).append((law, int(generator.integers(1, 3000))))
    first = sum(
        n * stride**2 * law.mass[law.index != 0].sum()
        for stride, laws in groups.items()
        for law, n in laws
    )

    def added(coarse: int) -> float:
        found = 0.0
        for stride, laws in groups.items():
            if stride < coarse:
                steps = sum(n for _, n in laws)
                off = sum(n * law.mass[law.index % coarse != 0].sum() for law, n in laws) / steps
                blocks = math.ceil(steps / (coarse / stride) ** 2)
                found += coarse**2 * off * blocks
        return found

    for length in (5e3, 8192.0, 8193.0, 4e4, 1e9):
        expected = 1
        while length > 8192 * expected and added(2 * expected) <= first:
            expected *= 2
        assert pld._last_stride(groups, length) == expected


def test_a_tilt_is_chosen_by_about_a_hundred_of_many_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0
    moments = pld.log_moments

    def counted(losses: Array, mass: Array, orders: list[float]) -> Array:
        nonlocal looked_at
        looked_at += len(orders)
        return moments(losses, mass, orders)

    monkeypatch.setattr(pld, "log_moments", counted)
    factors = [Factor(privacy_loss(FINE, 1), 1, 1)] * 990
    found = ComposedLoss(factors, STEP).delta(3.0)
    most_tilts = len(pld._COARSE_TILTS) + 3 * len(pld._FINE_TILTS)
    assert 0 < looked_at <= 100 * most_tilts
    same = ComposedLoss([Factor(privacy_loss(FINE, 1), 1, 990)], STEP).delta(3.0)
    assert found == pytest.approx(same, rel=1e-6)
