"""The loss of one Gaussian step against 40 digits: losses, outputs, ranges and mass on points."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import mpmath as mp
import numpy as np
import pytest

from tacit.privacy.gaussian_pair import GaussianPair
from tacit.privacy.loss_points import Level, PointLoss, Points

PAIRS = [
    GaussianPair(1.0, 0.01, 0.0),
    GaussianPair(1.0, 0.0, 0.01),
    GaussianPair(0.7, 0.2, 0.2),
    GaussianPair(0.4, 1e-4, 1e-4),
    GaussianPair(3.0, 0.5, 0.0),
    GaussianPair(3.0, 0.0, 0.5),
    GaussianPair(2.0, 1.0, 0.0),
    GaussianPair(2.0, 0.0, 1.0),
    GaussianPair(2.0, 1.0, 1.0),
    GaussianPair(1.5, 0.3, 0.05),
    GaussianPair(8.0, 0.9, 0.6),
]
Number = mp.mpf


def normal(x: Number) -> Number:
    """The normal law's distribution function."""
    return mp.erfc(-x / mp.sqrt(2)) / 2


def loss(pair: GaussianPair, x: Number) -> Number:
    """ln of the ratio of densities, by the definition of both mixtures."""
    s, p, q, x = (mp.mpf(each) for each in (pair.sigma, pair.p, pair.q, x))

    def density(mean: int) -> Number:
        return mp.exp(-((x - mean) ** 2) / (2 * s**2))

    first = (1 - p) * density(0) + p * density(1)
    return mp.log(first / ((1 - q) * density(0) + q * density(-1)))


def masses(pair: GaussianPair, x: Number) -> tuple[Number, Number]:
    """Both members' mass below an output."""
    s, p, q = (mp.mpf(each) for each in (pair.sigma, pair.p, pair.q))
    low, centre, high = (normal((mp.mpf(x) - mean) / s) for mean in (-1, 0, 1))
    return (1 - p) * centre + p * high, (1 - q) * centre + q * low


def output(pair: GaussianPair, at: float) -> Number:
    """The output with a loss: the positive root of a quadratic equation, in many digits,
    or ±400 where no output has such a loss."""
    with mp.workdps(120):
        s, p, q, e = mp.mpf(pair.sigma), mp.mpf(pair.p), mp.mpf(pair.q), mp.exp(at)
        c, linear = mp.exp(-1 / (2 * s**2)), 1 - p - e * (1 - q)
        if p == 0:
            root = e * q * c / linear if linear > 0 else mp.inf
        else:
            root = (mp.sqrt(linear**2 + 4 * p * c * e * q * c) - linear) / (2 * p * c)
        found = s**2 * mp.log(root) if root > 0 else -mp.inf
        return max(mp.mpf(-400), min(mp.mpf(400), found))


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_losses_are_right_to_the_last_digits_and_never_too_small(pair: GaussianPair) -> None:
    outputs = np.concatenate([np.linspace(-14, 14, 41) * pair.sigma, [0.0, 0.5, 1.0, -1e-9]])
    found, over = pair.loss_at(outputs)
    with mp.workdps(40):
        for x, at, top in zip(outputs, found, over, strict=True):
            exact = loss(pair, mp.mpf(float(x)))
            spread = 1 + abs(x) / pair.sigma**2 + 1 / pair.sigma**2
            assert 0 <= at - exact <= 1e-14 * spread * (1 + abs(exact)) * spread
            above = (2 * mp.mpf(float(x)) - 1) / (2 * mp.mpf(pair.sigma) ** 2)
            ratio = mp.log(1 - mp.mpf(pair.p) + pair.p * mp.exp(above))
            assert abs(top - ratio) <= 1e-15 * spread + 4e-16 * abs(ratio)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_the_output_with_a_loss_is_found(pair: GaussianPair) -> None:
    outputs = np.linspace(-8, 8, 23) * pair.sigma
    with mp.workdps(40):
        exact = [loss(pair, mp.mpf(float(x))) for x in outputs]
    found = pair.output_at(np.array([float(at) for at in exact]))
    for x, given, at in zip(outputs, found, exact, strict=True):
        if abs(at) > 1e-3:  # nearer to zero the loss has too few digits to tell the output
            steepness = float(abs(at)) if pair.p * pair.q == 0 else 1.0
            known = max(pair.p, pair.q) < 1
            floor = math.log1p(-pair.p) - math.log1p(-pair.q) if known else math.inf
            near = abs(float(at) - floor)
            assert given == pytest.approx(x, abs=1e-11 / min(near, steepness, 1.0))


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_losses_that_no_output_has_lie_beyond_all_outputs(pair: GaussianPair) -> None:
    if pair.q == 0 and pair.p < 1:
        below = math.log1p(-pair.p) - 1e-3
        assert pair.output_at(np.array([below]))[0] == -math.inf
    elif pair.p == 0 and pair.q < 1:
        above = -math.log1p(-pair.q) + 1e-3
        assert pair.output_at(np.array([above]))[0] == math.inf
    else:
        far = pair.output_at(np.array([-500.0, 500.0]))
        assert far[0] < -20 * pair.sigma and far[1] > 20 * pair.sigma


def test_without_a_record_there_is_no_loss() -> None:
    nothing = GaussianPair(1.0, 0.0, 0.0)
    assert nothing.output_at(np.array([-0.1, 0.0, 0.1])).tolist() == [-math.inf, math.inf, math.inf]
    losses, over = nothing.loss_at(np.array([-3.0, 0.0, 7.0]))
    assert losses.tolist() == over.tolist() == [0.0, 0.0, 0.0]
    assert nothing.variance() == 0.0 and nothing.span(1e-10) == (0.0, 0.0)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("tail", [1e-40, 1e-12, 1e-4, 0.3])
def test_all_but_the_tail_lies_within_the_span_and_not_much_more(
    pair: GaussianPair, tail: float
) -> None:
    low, high = pair.span(tail)
    with mp.workdps(60):
        for end, up in ((low, False), (high, True)):
            x = output(pair, end + (1e-12 if up else -1e-12) * (1 + abs(end)))
            below, _ = masses(pair, x)
            beyond = 1 - below if up else below
            assert beyond <= tail
            # one standard deviation less of the output would leave too much outside
            nearer, _ = masses(pair, x - pair.sigma if up else x + pair.sigma)
            p = pair.p if up else 0.0
            wasteful = tail * (min(p, 1 - p) or 1) / 8
            assert (1 - nearer if up else nearer) > wasteful or abs(x) > 390


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_the_variance_is_that_of_the_loss(pair: GaussianPair) -> None:
    x = np.linspace(-14 * pair.sigma, 14 * pair.sigma + 1, 200_001)
    s, p, q = pair.sigma, pair.p, pair.q
    first, middle, second = (np.exp(-(((x - m) / s) ** 2) / 2) for m in (1, 0, -1))
    weight = (1 - p) * middle + p * first
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = np.log(weight) - np.log((1 - q) * middle + q * second)
    weight, losses = weight[weight > 1e-300] / weight.sum(), losses[weight > 1e-300]
    mean = weight @ losses
    assert pair.variance() == pytest.approx(weight @ (losses - mean) ** 2, rel=1e-6)


GRIDS = [
    Points(0.25, (Level(-12, 16, 1),)),
    Points(0.05, (Level(-6, 10, 2), Level(-16, 42, 8))),
    Points(0.003, (Level(-9, 12, 3), Level(-300, 600, 60))),
    Points(0.5, (Level(0, 1, 1),)),
    Points(1e-4, (Level(-2, 3, 1),)),
]


@lru_cache(maxsize=256)
def edge(pair: GaussianPair, at: float) -> tuple[Number, Number]:
    with mp.workdps(40):
        return masses(pair, output(pair, at))


def exact_law(pair: GaussianPair, points: Points) -> tuple[list[Number], Number]:
    """Mass on each point and at infinity, from both members' mass between two points alone.

    What lies between losses l < h with masses P and Q becomes a at l and b at h, with a + b = P
    and a·e^−l + b·e^−h = Q; what lies below all points moves up, what lies above becomes infinite.
    """
    ends = [mp.mpf(float(i * points.step)) for i in points.index.tolist()]
    found = [mp.mpf(0)] * len(ends)
    below = [edge(pair, float(end)) for end in ends]
    found[0] += below[0][0]
    for i in range(len(ends) - 1):
        first, second = (below[i + 1][k] - below[i][k] for k in (0, 1))
        low, high = mp.exp(-ends[i]), mp.exp(-ends[i + 1])
        up = (first * low - second) / (low - high)
        found[i] += first - up
        found[i + 1] += up
    return found, 1 - below[-1][0]


@pytest.mark.parametrize("points", GRIDS, ids=lambda points: f"{points.step}")
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_mass_on_points_is_what_both_members_have_between_them(
    pair: GaussianPair, points: Points
) -> None:
    made = pair.on_points(points, 1e-40)
    with mp.workdps(40):
        expected, infinite = exact_law(pair, points)
        assert made.index.tolist() == points.index.tolist()
        around = [sum(expected[max(0, i - 1) : i + 2]) for i in range(len(expected))]
        for got, want, near in zip(made.mass, expected, around, strict=True):
            assert abs(got - want) <= 3e-11 * near + 1e-17
        above = made.infinite + np.cumsum(made.mass[::-1])
        for got, want in zip(above, itertools.accumulate(reversed(expected)), strict=True):
            assert got >= (want + infinite) * (1 - 1e-13) - 1e-17  # mass errs towards large losses
        assert abs(made.infinite - infinite) <= 1e-12 * infinite + 1e-13
        assert abs(math.fsum(made.mass) + made.infinite - 1) < 1e-13


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_delta_is_nowhere_too_small_within_the_stated_slack(pair: GaussianPair) -> None:
    points = Points(0.01, (Level(-200, 300, 1),))
    made = pair.on_points(points, 1e-40)
    # two rules of 4e-14 each, and the rounding of exponents of up to 13.6²/2
    assert 8e-14 + 13.6**2 * 2.0**-53 <= made.slack < 1e-11
    losses = made.index * points.step
    with mp.workdps(40):
        for epsilon in (0.0, 0.004, 0.05, 0.5, 1.2, 2.0):
            first, second = masses(pair, output(pair, epsilon))
            true = (1 - first) - mp.exp(epsilon) * (1 - second)
            parts = np.maximum(0.0, -np.expm1(epsilon - losses)) * made.mass
            bound = (math.fsum(parts) + made.infinite) * math.exp(made.slack)
            assert bound >= true * (1 - mp.mpf("1e-15"))


@pytest.mark.parametrize("lowest", [-400, -3000])
@pytest.mark.parametrize("tail", [1e-3, 1e-6])
def test_mass_outside_what_is_integrated_is_kept(tail: float, lowest: int) -> None:
    """With a wide tail, what is left out above counts as infinite and below as the lowest loss."""
    for pair in PAIRS:
        points = Points(0.1, (Level(lowest, 400, 1),))
        wide, narrow = pair.on_points(points, 1e-40), pair.on_points(points, tail)
        assert math.fsum(narrow.mass) + narrow.infinite == pytest.approx(1.0, abs=1e-12)
        low, high = pair.span(tail)
        mean = float(wide.mass @ wide.index)
        assert narrow.mass @ narrow.index == pytest.approx(mean, abs=30 * tail / 0.1)
        assert wide.infinite <= narrow.infinite <= wide.infinite + tail
        x = float(output(pair, high))
        above = float(1 - masses(pair, x)[0])
        assert narrow.infinite == pytest.approx(above, rel=1e-5, abs=1e-12)
        below = float(masses(pair, float(output(pair, low)))[0])
        first = int(np.flatnonzero(narrow.mass)[0])
        assert narrow.index[first] * 0.1 == pytest.approx(low, abs=0.1 + 1e-9)
        assert below <= tail and narrow.mass[first : first + 2].sum() >= below * (1 - 1e-5)


def test_points_that_hold_nothing_above_make_what_is_above_infinite() -> None:
    """A record that is always there: all of N(1, σ²) against N(0, σ²), with closed forms."""
    pair = GaussianPair(2.0, 1.0, 0.0)  # loss (2x − 1)/8
    made: PointLoss = pair.on_points(Points(0.125, (Level(0, 1, 1),)), 1e-40)
    ends = [0.5, 1.0]
    below = [(float(normal((e - 1) / 2)), float(normal(e / 2))) for e in ends]
    assert made.infinite == pytest.approx(1 - below[1][0], rel=1e-12)
    inside = below[1][0] - below[0][0], below[1][1] - below[0][1]
    up = (inside[0] - inside[1]) / (1 - math.exp(-0.125))
    assert made.mass.tolist() == pytest.approx([below[0][0] + inside[0] - up, up], rel=1e-9)


def test_tiny_noise_takes_little_memory_where_the_loss_hardly_varies() -> None:
    """Addition at rate q: the loss is −ln(1 − q) for all outputs that matter."""
    import tracemalloc

    pair, points = GaussianPair(1e-6, 0.0, 0.1), Points(0.001, (Level(-100, 200, 1),))
    tracemalloc.start()
    made = pair.on_points(points, 1e-40)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e8
    assert math.fsum(made.mass) + made.infinite == pytest.approx(1.0, abs=1e-12)
    assert float(made.mass @ made.index) * 0.001 == pytest.approx(-math.log(0.9), abs=2e-3)
