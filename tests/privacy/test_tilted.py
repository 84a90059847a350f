"""Tilted laws: moments, ranges, coarser grids and convolutions against sums by the definition."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.privacy.loss_points import PointLoss
from tacit.privacy.tilted import (
    Factors,
    TiltedLaw,
    coarser,
    convolved,
    log_moments,
    tilted,
    window,
)

Array = NDArray[np.float64]
STEP = 0.03


def law_on(
    low: int, high: int, stride: int = 1, seed: int = 0, infinite: float = 0.0, slack: float = 0.0
) -> TiltedLaw:
    """A random law of the tilted kind."""
    index = np.arange(low, high + 1, stride)
    mass = np.random.default_rng(seed).random(len(index)) ** 3
    return TiltedLaw(index, mass / mass.sum(), 0.2 * seed - 0.3, infinite, slack)


def dense(law: TiltedLaw, low: int, high: int) -> Array:
    found = np.zeros(high - low + 1)
    found[law.index - low] = law.mass
    return found


def exact(factors: Factors) -> tuple[int, Array]:
    """First index and probabilities of the sum of all factors: sums of positive terms."""
    first, total = 0, np.ones(1)
    for law, count in factors:
        low, high = int(law.index.min()), int(law.index.max())
        for _ in range(count):
            first, total = first + low, np.convolve(total, dense(law, low, high))
    return first, total


SMALL = TiltedLaw(np.array([-4, -1, 0, 3, 6]), np.array([0.1, 0.2, 0.4, 0.25, 0.05]), 0.7, 0.0, 0.0)


def test_mass_off_zero_and_off_a_coarser_grid() -> None:
    assert SMALL.off_zero == pytest.approx(0.6)
    assert SMALL.off_grid(1) == 0.0
    assert SMALL.off_grid(2) == pytest.approx(0.45)
    assert SMALL.off_grid(3) == pytest.approx(0.3)
    assert SMALL.off_grid(4) == pytest.approx(0.5)


def test_mean_and_variance_are_in_units_of_loss() -> None:
    mean = -0.4 - 0.2 + 0.75 + 0.3
    second = 1.6 + 0.2 + 2.25 + 1.8
    assert SMALL.spread(0.5) == pytest.approx((mean * 0.5, (second - mean**2) * 0.25))


def test_moments_of_any_size_are_found() -> None:
    losses, mass = SMALL.index * 0.5, SMALL.mass
    found = log_moments(losses, mass, [-2.0, -0.1, 0.0, 0.3, 4.0])
    expected = [math.log(mass @ np.exp(t * losses)) for t in (-2.0, -0.1, 0.0, 0.3, 4.0)]
    assert found.tolist() == pytest.approx(expected, abs=1e-14)
    far = log_moments(losses * 1e4, np.append(mass[:4], 0.0), [-1.0, 1.0])
    assert far.tolist() == pytest.approx([2e4 + math.log(0.1), 1.5e4 + math.log(0.25)])


@pytest.mark.parametrize("tilt", [0.0, 0.5, 2.0, 300.0, 2000.0])
def test_a_tilted_law_is_the_law_times_an_exponential(tilt: float) -> None:
    law = PointLoss(np.array([-40, -3, 0, 2, 50]), np.array([0.3, 0.2, 0.0, 0.4, 1e-9]), 0.01, 1e-6)
    found = tilted(law, tilt, 0.05)
    logs = np.log(law.mass[law.mass > 0]) + tilt * law.index[law.mass > 0] * 0.05
    scale = float(np.logaddexp.reduce(logs))
    assert found.log_scale == pytest.approx(scale, abs=1e-13 * (1 + abs(scale)))
    expected = np.zeros(5)
    expected[law.mass > 0] = np.exp(logs - scale)
    assert found.mass == pytest.approx(expected, rel=1e-11, abs=1e-300)
    assert found.index is law.index and found.infinite == 0.01
    size = 2 + abs(float(logs.max())) + tilt * 2.5
    assert 2.0**-52 * size < found.slack - 1e-6 < 1e-14 * size


@pytest.mark.parametrize("ratio", [2, 3, 8])
@pytest.mark.parametrize(("tilt", "low"), [(0.0, -7), (1.5, -16), (40.0, 5)])
def test_a_coarser_law_keeps_the_mass_of_both_members(ratio: int, tilt: float, low: int) -> None:
    """Each loss is moved to its two neighbours, as it would be without the tilt."""
    stride, unit = 2, 2 * ratio
    law = law_on(2 * low, 2 * low + 60, stride, seed=4, infinite=0.03, slack=0.01)
    found = coarser(law, ratio, stride, tilt, STEP)
    assert (found.index % unit == 0).all() and (np.diff(found.index) == unit).all()
    expected = dict.fromkeys(found.index.tolist(), 0.0)
    factors = []
    for i, m in zip(law.index.tolist(), law.mass, strict=True):
        below = i // unit * unit
        a, b = (math.exp(-x * STEP) for x in (below, below + unit))
        up = (a - math.exp(-i * STEP)) / (a - b)
        stay, go = (
            ((1 - up), math.exp(tilt * (below - i) * STEP)),
            (
                up,
                math.exp(tilt * (below + unit - i) * STEP),
            ),
        )
        expected[below] += m * stay[0] * stay[1]
        expected[below + unit] = expected.get(below + unit, 0.0) + m * go[0] * go[1]
        factors.append(stay[0] * stay[1] + go[0] * go[1])
    total = math.fsum(expected.values())
    assert {i for i, m in expected.items() if m > 0} <= set(found.index.tolist())
    assert found.mass == pytest.approx([expected[i] / total for i in found.index.tolist()])
    assert found.mass.sum() == pytest.approx(1.0, abs=1e-15)
    assert found.log_scale == pytest.approx(law.log_scale + math.log(total), abs=1e-13)
    assert found.infinite == 0.03
    worst = math.expm1(0.01) * max(factors) / total
    stated = math.expm1(0.01) * math.exp(tilt * unit * STEP) / total
    assert worst < math.expm1(found.slack) == pytest.approx(stated, rel=1e-11)
    assert math.expm1(found.slack) > stated
    assert 0 < coarser(replace(law, slack=0.0), ratio, stride, tilt, STEP).slack < 1e-12


LAWS: list[Factors] = [
    [(law_on(-5, 8, seed=1), 12)],
    [(law_on(-5, 8, seed=1), 5), (law_on(-30, 3, seed=2), 3), (law_on(0, 60, seed=3), 1)],
    [(law_on(-40, -10, seed=5), 7)],
    [(law_on(10, 40, seed=6), 7), (law_on(0, 0, seed=7), 9)],
    [(law_on(-3, 3, seed=seed), 1) for seed in range(81)],
    [(TiltedLaw(np.array([0, 100]), np.array([0.999, 0.001]), 0.0, 0.0, 0.0), 40)],
]


def best_range(factors: Factors, tail: float) -> tuple[float, float]:
    """The least Chernoff bounds over a fine grid of orders."""
    orders = np.geomspace(1e-2, 1e3, 300)
    log_moment = {sign: np.zeros(len(orders)) for sign in (-1, 1)}
    for law, count in factors:
        for sign in (-1, 1):
            log_moment[sign] += count * log_moments(law.index * STEP, law.mass, sign * orders)
    ends = [(log_moment[sign] - math.log(tail)) / orders for sign in (-1, 1)]
    return -float(ends[0].min()), float(ends[1].min())


@pytest.mark.parametrize("factors", LAWS)
@pytest.mark.parametrize("tail", [1e-2, 1e-6, 1e-11])
def test_all_but_the_tail_of_a_sum_lies_in_its_window(factors: Factors, tail: float) -> None:
    low, high = window(factors, STEP, tail)
    first, mass = exact(factors)
    losses = (first + np.arange(len(mass))) * STEP
    assert mass[losses < low].sum() <= tail and mass[losses > high].sum() <= tail
    best_low, best_high = best_range(factors, tail)
    mean = float(mass @ losses)
    more = max(STEP, math.sqrt(float(mass @ (losses - mean) ** 2)) / 2)
    assert min(best_low, mean - STEP) + 1e-3 >= low >= mean - 1.3 * (mean - best_low) - more
    assert max(best_high, mean + STEP) - 1e-3 <= high <= mean + 1.3 * (best_high - mean) + more


def test_a_law_without_any_spread_has_a_window_of_its_own() -> None:
    only = TiltedLaw(np.zeros(1, int), np.ones(1), 0.0, 0.0, 0.0)
    low, high = window([(only, 3)], STEP, 1e-6)
    assert low <= -STEP and high >= STEP


@pytest.mark.parametrize("factors", LAWS)
@pytest.mark.parametrize("tail", [1e-3, 1e-11])
@pytest.mark.parametrize("stride", [1, 4])
def test_convolutions_are_sums_within_the_stated_slack(
    factors: Factors, tail: float, stride: int
) -> None:
    wide = [(replace(law, index=law.index * stride), count) for law, count in factors]
    found = convolved(wide, stride, STEP / stride, tail)
    first, mass = exact(factors)
    assert (np.diff(found.index) == stride).all() and (found.index % stride == 0).all()
    assert found.mass.min() >= 0 and found.mass.sum() == pytest.approx(1.0, abs=1e-14)
    scale = sum(count * law.log_scale for law, count in factors)
    got = dict(zip((found.index // stride).tolist(), found.mass, strict=True))
    ratio = math.exp(found.log_scale - scale)
    true = {first + i: float(m) for i, m in enumerate(mass)}
    missed = math.fsum(abs(true.get(i, 0.0) - ratio * got.get(i, 0.0)) for i in {*true, *got})
    if len(factors) > 1 or factors[0][1] > 1:
        assert missed <= 2 * tail + math.expm1(found.slack)
        inside = math.fsum(max(0.0, true.get(i, 0.0) - ratio * m) for i, m in got.items())
        assert inside <= math.expm1(found.slack)
        assert tail / ratio * (1 - 1e-3) <= found.slack <= 1.01 * tail / ratio + 2e-11


def test_slack_and_infinite_losses_add_up() -> None:
    factors = [(law_on(-5, 8, 1, 1, 1e-4, 1e-5), 5), (law_on(-30, 3, 1, 2, 2e-4, 3e-5), 3)]
    found = convolved(factors, 1, STEP, 1e-11)
    assert found.infinite == pytest.approx(5 * 1e-4 + 3 * 2e-4)
    assert found.slack == pytest.approx(5 * 1e-5 + 3 * 3e-5, abs=1e-10)
    assert found.slack >= 5 * 1e-5 + 3 * 3e-5 + 1e-11
    assert found.log_scale == pytest.approx(5 * -0.1 + 3 * 0.1, abs=1e-11)


def test_a_single_law_is_left_as_it_is() -> None:
    law = law_on(-5, 8)
    assert convolved([(law, 1)], 1, STEP, 1e-11) is law
    assert convolved([(law, 2)], 1, STEP, 1e-11) is not law
    assert len(convolved([(law, 1), (law, 1)], 1, STEP, 1e-11).index) > len(law.index)


@pytest.mark.parametrize("count", [1000, 20_000])
def test_a_thousand_steps_are_what_doubling_finds(count: int) -> None:
    """Most of the transform is negligible then, and its logarithm is taken."""
    law = TiltedLaw(np.array([-2, 0, 1, 5]), np.array([0.2, 0.5, 0.2, 0.1]), 0.0, 0.0, 0.0)
    found = convolved([(law, count)], 1, STEP, 1e-12)
    mean, variance = (count * each for each in law.spread(STEP))
    assert found.spread(STEP) == pytest.approx((mean, variance), rel=1e-8)
    half = convolved([(law, count // 2)], 1, STEP, 1e-12)
    whole = np.convolve(half.mass, half.mass)
    start = int(found.index[0] - 2 * half.index[0])
    assert np.abs(whole[start : start + len(found.mass)] - found.mass).sum() < 1e-9
    assert found.slack < 1e-8


@pytest.mark.parametrize("factors", LAWS[:2])
def test_every_error_of_a_transform_is_covered(factors: Factors) -> None:
    """Without mass that wraps around, the slack covers rounding, and not much more."""
    tail = 1e-300
    found = convolved(factors, 1, STEP, tail)
    first, mass = exact(factors)
    start = first - int(found.index[0])
    got = found.mass * math.exp(
        found.log_scale - sum(count * law.log_scale for law, count in factors)
    )
    error = np.abs(got[start : start + len(mass)] - mass).sum()
    error += got.sum() - got[start : start + len(mass)].sum()
    assert error <= math.expm1(found.slack) <= 1e-11


def test_the_stated_rounding_grows_with_the_length_of_the_transform() -> None:
    """Three transforms of N values, each wrong by up to 4·2⁻⁵² for each doubling of its length."""
    for reach in (20, 2000, 40_000):
        law = TiltedLaw(
            np.array([-reach, 0, reach]), np.array([1e-6, 1 - 2e-6, 1e-6]), 0.0, 0.0, 0.0
        )
        found = convolved([(law, 1), (law, 1)], 1, STEP, 1e-9)
        size = len(found.index)
        rounding = 3 * 4 * 2.0**-52 * math.log2(size) * math.sqrt(size)
        assert reach < size and 0.97 * rounding <= math.expm1(found.slack) - 1e-9 <= 10 * rounding
