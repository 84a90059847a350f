"""δ(ε) of a tilted law against the sum by its definition, with 50 digits."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest

from tacit.privacy.tilted import TiltedLaw
from tacit.privacy.tilted_tail import TiltedTail, log_peak

STEP = 0.02


def law(stride: int = 1, slack: float = 0.0, scale: float = -3.0, low: int = -20) -> TiltedLaw:
    index = stride * np.arange(low, 61)
    mass = np.random.default_rng(1).random(len(index)) ** 4
    return TiltedLaw(index, mass / mass.sum(), scale, 0.0, slack)


def exact(tilted: TiltedLaw, tilt: float, epsilon: float) -> mp.mpf:
    with mp.workdps(50):
        total = mp.mpf(0)
        for i, m in zip(tilted.index.tolist(), tilted.mass.tolist(), strict=True):
            at = i * mp.mpf(STEP)
            if at > epsilon:
                total += -mp.expm1(epsilon - at) * mp.exp(tilted.log_scale - tilt * at) * m
        return total


EPSILONS = [-0.7, -0.4, -0.013, 0.0, 0.02, 0.0314, 0.2, 0.8, 1.19, 1.2]


@pytest.mark.parametrize("stride", [1, 4])
@pytest.mark.parametrize("tilt", [0.004, 0.7, 3.0, 60.0])
def test_delta_is_the_sum_by_its_definition_and_never_below(tilt: float, stride: int) -> None:
    given = law(stride)
    tail = TiltedTail.of(given, tilt, STEP)
    for epsilon in [*EPSILONS, 4.0 * (stride - 1), 1.1 * stride]:
        true = exact(given, tilt, epsilon)
        found = tail.delta(epsilon)
        if true < 1:
            rounding = mp.exp(given.log_scale - tilt * epsilon) * mp.mpf("1e-12")
            assert true <= found <= true * (1 + mp.mpf("1e-11")) + rounding
        else:
            assert found == 1.0


def test_above_all_losses_nothing_is_left_but_the_stated_error() -> None:
    for tilt in (0.3, 5.0):
        x = np.linspace(1e-6, 12, 2_000_001)
        peak = float((-np.expm1(-x) * np.exp(-tilt * x)).max())
        assert math.exp(log_peak(tilt)) == pytest.approx(peak, rel=1e-9)
        for slack in (0.0, 1e-3):
            tail = TiltedTail.of(law(slack=slack), tilt, STEP)
            expected = math.exp(-3.0 - tilt * 1.5) * math.expm1(slack) * peak
            assert tail.delta(1.5) == pytest.approx(expected, rel=1e-8, abs=0)


def test_the_stated_error_is_added_at_every_epsilon() -> None:
    sure, unsure = (TiltedTail.of(law(slack=slack), 2.0, STEP) for slack in (0.0, 1e-2))
    for epsilon in EPSILONS:
        more = math.exp(-3.0 - 2.0 * epsilon) * math.expm1(1e-2) * math.exp(log_peak(2.0))
        assert unsure.delta(epsilon) - sure.delta(epsilon) == pytest.approx(more, rel=1e-6)


def test_a_law_on_one_point() -> None:
    one = TiltedLaw(np.array([25]), np.ones(1), 0.5, 0.0, 0.0)
    tail = TiltedTail.of(one, 1.0, STEP)
    for epsilon in (-0.2, 0.0, 0.49):
        expected = -math.expm1(epsilon - 0.5) * math.exp(0.5 - 0.5)
        assert tail.delta(epsilon) == pytest.approx(expected, rel=1e-12)
    assert tail.delta(0.5) < 1e-14 and tail.delta(0.6) == 0.0


def test_delta_is_at_most_one_also_where_the_sum_overflows() -> None:
    tail = TiltedTail.of(law(scale=5.0), 0.5, STEP)
    assert tail.delta(-2.0) == 1.0
    assert TiltedTail.of(law(scale=2000.0), 0.5, STEP).delta(0.0) == 1.0
    assert TiltedTail.of(law(scale=699.0), 0.5, STEP).delta(0.0) == 1.0
    far = TiltedTail.of(law(scale=0.0), 900.0, STEP)
    assert far.delta(-0.8) == 1.0 and 0 < far.delta(0.0) < 1


@pytest.mark.parametrize("scale", [690.0, 699.6, 699.99])
def test_factors_close_to_overflow_are_still_exact(scale: float) -> None:
    """e^scale is far above one, but a loss of 10 under this tilt brings it back."""
    one = TiltedLaw(np.array([500]), np.ones(1), scale, 0.0, 0.0)
    expected = -math.expm1(-10.0) * math.exp(scale - 70.5 * 10)
    assert TiltedTail.of(one, 70.5, STEP).delta(0.0) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("tilt", [0.3, 2.0, 30.0])
@pytest.mark.parametrize("delta", [0.01, 1e-5, 1e-14])
def test_epsilon_is_the_smallest_with_that_delta(tilt: float, delta: float) -> None:
    tail = TiltedTail.of(law(slack=1e-12, scale=2.0 * tilt - 4), tilt, STEP)
    found = tail.epsilon(delta)
    assert tail.delta(found) <= delta
    if found > 0:
        assert tail.delta(math.nextafter(found, 0.0)) > delta


def test_epsilon_is_zero_where_delta_allows_it_and_may_be_large() -> None:
    tail = TiltedTail.of(law(), 1.0, STEP)
    at_zero = tail.delta(0.0)
    assert tail.epsilon(at_zero) == tail.epsilon(0.5) == 0.0
    assert 0 < tail.epsilon(at_zero * 0.999) < 0.02
    high = TiltedTail.of(law(stride=40, scale=0.0), 0.01, STEP)
    found = high.epsilon(1e-9)
    assert 40 < found < 49 and float(exact(law(stride=40, scale=0.0), 0.01, found)) <= 1e-9
