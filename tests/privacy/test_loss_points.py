"""Laws on points of a grid: what is cut, moved and split, against sums by the definition."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.privacy.loss_points import (
    Level,
    PointLoss,
    Points,
    cells,
    losses_at,
    moved,
    points_for,
    split,
)

Array = NDArray[np.float64]
Law = dict[float, float]
LEVELS = Points(0.125, (Level(-3, 4, 1), Level(-8, 16, 4), Level(-32, 48, 16)))


def delta(law: Law, infinite: float, epsilon: float) -> float:
    """δ(ε) by its definition."""
    finite = (max(0.0, -math.expm1(epsilon - at)) * mass for at, mass in law.items())
    return infinite + math.fsum(finite)


def as_law(loss: PointLoss, step: float) -> Law:
    return {int(i) * step: float(m) for i, m in zip(loss.index, loss.mass, strict=True)}


def together(first: Law, second: Law) -> Law:
    """The sum of two independent losses."""
    found: Law = {}
    for a, p in first.items():
        for b, q in second.items():
            found[round(a + b, 9)] = found.get(round(a + b, 9), 0.0) + p * q
    return found


def test_points_are_those_of_all_levels_each_once() -> None:
    assert LEVELS.index.tolist() == [-32, -16, -8, -4, *range(-3, 5), 8, 12, 16, 32, 48]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (0, [-32, -16, -8, -4, -3, 0, 4, 8, 12, 16, 32, 48]),
        (1, [-32, -16, -8, 0, 16, 32, 48]),
        (2, [-32, 0, 48]),
    ],
)
def test_points_outside_a_level_are_its_ends_zero_and_those_beyond(
    level: int, expected: list[int]
) -> None:
    assert LEVELS.outside(level).tolist() == expected


def test_zero_is_a_point_once_also_at_the_end_of_a_level() -> None:
    one_sided = Points(1.0, (Level(0, 2, 1), Level(0, 8, 2)))
    assert one_sided.index.tolist() == [0, 1, 2, 4, 6, 8]
    assert one_sided.outside(0).tolist() == [0, 2, 4, 6, 8]
    below = Points(1.0, (Level(-2, 0, 1), Level(-8, 0, 2)))
    assert below.index.tolist() == [-8, -6, -4, -2, -1, 0]
    assert below.outside(0).tolist() == [-8, -6, -4, -2, 0]


def test_losses_are_multiples_of_the_step() -> None:
    found = losses_at(np.array([-3, 0, 7]), 0.25)
    assert found.tolist() == [-0.75, 0.0, 1.75] and found.dtype == np.float64


LAW = PointLoss(
    np.array([-4, -2, -1, 0, 1, 3, 6]), np.array([0.01, 0.04, 0.2, 0.5, 0.2, 0.03, 0.015]), 0.005
)


@pytest.mark.parametrize(
    ("mass", "index", "kept", "infinite"),
    [
        (0.001, [-4, -2, -1, 0, 1, 3, 6], [0.01, 0.04, 0.2, 0.5, 0.2, 0.03, 0.015], 0.005),
        (0.02, [-2, -1, 0, 1, 3], [0.05, 0.2, 0.5, 0.2, 0.03], 0.02),
        (0.03, [-2, -1, 0, 1, 3], [0.05, 0.2, 0.5, 0.2, 0.03], 0.02),
        (0.06, [-1, 0, 1], [0.25, 0.5, 0.2], 0.05),
        (0.8, [1], [0.95], 0.05),
        (1.5, [6], [0.995], 0.005),
    ],
)
def test_as_many_of_the_largest_losses_as_allowed_become_infinite(
    mass: float, index: list[int], kept: list[float], infinite: float
) -> None:
    """And the smallest ones move up to the first that is kept."""
    cut = PointLoss(LAW.index, LAW.mass, LAW.infinite, 1e-9).cut(mass)
    assert cut.index.tolist() == index
    assert cut.mass.tolist() == pytest.approx(kept) and cut.infinite == pytest.approx(infinite)
    assert cut.slack == 1e-9
    assert LAW.mass[0] == 0.01


def test_cutting_never_lowers_delta_nor_loses_mass() -> None:
    generator = np.random.default_rng(2)
    for _ in range(60):
        index = np.sort(generator.choice(np.arange(-40, 60), 25, replace=False))
        weights = generator.random(25) ** 6
        law = PointLoss(index, 0.98 * weights / weights.sum(), 0.02)
        allowed = float(10 ** generator.uniform(-6, -0.5))
        cut = law.cut(allowed)
        assert math.fsum(cut.mass) + cut.infinite == pytest.approx(1.0)
        assert cut.infinite - law.infinite <= allowed or len(cut.mass) == 1
        for epsilon in np.linspace(-5, 7, 25):
            before = delta(as_law(law, 0.1), law.infinite, epsilon)
            after = delta(as_law(cut, 0.1), cut.infinite, epsilon)
            assert before - 1e-15 <= after <= before + 2 * allowed or len(cut.mass) == 1


@dataclass(frozen=True)
class Exponential:
    """A pair whose loss has tails e^(−|loss|/width) on either side."""

    below: float
    above: float

    def span(self, tail: float) -> tuple[float, float]:
        return self.below * math.log(tail), -self.above * math.log(tail)

    def variance(self) -> float:
        raise NotImplementedError

    def on_points(self, points: Points, tail: float) -> PointLoss:
        raise NotImplementedError


def test_few_points_lie_equally_far_apart() -> None:
    found = points_for(Exponential(1.0, 2.0), 0.5, 1e-6, 4, 1000)
    low, high = 13.8155 / 0.5, 2 * 13.8155 / 0.5
    assert found == Points(0.5, (Level(-4 * math.ceil(low / 4), 4 * math.ceil(high / 4), 4),))


def test_all_losses_on_one_side_still_leave_zero_a_point() -> None:
    for below, above in ((-0.1, 2.0), (2.0, -0.1)):
        found = points_for(Exponential(below, above), 0.5, 1e-6, 1, 1000)
        (level,) = found.levels
        assert min(level.low, -level.high) == -56 and 0 in (level.low, level.high)


def assert_levels_follow_the_tails(pair: Exponential, step: float, stride: int) -> Points:
    tail, few = 1e-30, 64
    points = points_for(pair, step, tail, stride, few)
    assert points.step == step and len(points.levels) > 1
    left, now, inner = 1e-4, stride, (0, 0)
    for level, after in zip(points.levels, [*points.levels[1:], None], strict=True):
        assert level.stride == now
        if after is None:
            break
        coarse = after.stride
        assert coarse in [now << n for n in range(1, 7)]
        # the first mass at which the next stride is at most 1/64 of the distance to zero
        while max(-pair.span(left)[0], pair.span(left)[1]) / step < 2 * now * 64:
            left /= 4096
        reach = max(-pair.span(left)[0], pair.span(left)[1]) / step
        most = [now << n for n in range(1, 7) if (now << n) * 64 <= reach]
        assert coarse == most[-1]
        low, high = (end / step for end in pair.span(left))
        assert level.low == coarse * math.floor(low / coarse)
        assert level.high == coarse * math.ceil(high / coarse)
        assert level.low <= inner[0] and level.high >= inner[1]
        inner, now, left = (level.low, level.high), coarse, left / 4096
    last = points.levels[-1]
    assert last.low == last.stride * math.floor(pair.span(tail)[0] / step / last.stride)
    assert last.high == last.stride * math.ceil(pair.span(tail)[1] / step / last.stride)
    ends = points.index
    assert (np.diff(ends) > 0).all() and 0 in ends
    return points


@pytest.mark.parametrize(("below", "above"), [(1.0, 1.0), (0.2, 3.0), (3.0, 0.01)])
@pytest.mark.parametrize("stride", [1, 2])
def test_points_grow_apart_where_little_mass_is_left(
    below: float, above: float, stride: int
) -> None:
    """By 64 where the mass falls by 64², but never beyond 1/64 of the distance to zero."""
    points = assert_levels_follow_the_tails(Exponential(below, above), 1e-4, stride)
    last = points.levels[-1]
    assert 2 * len(points.index) < (last.high - last.low) / stride


def test_a_level_ends_at_the_first_coarser_point_that_holds_its_mass() -> None:
    generator = np.random.default_rng(4)
    for below, above in generator.uniform(0.2, 3.0, (60, 2)):
        assert_levels_follow_the_tails(Exponential(float(below), float(above)), 0.01, 1)


def test_points_stop_growing_apart_once_they_are_few() -> None:
    wide = points_for(Exponential(1.0, 1.0), 1e-4, 1e-30, 1, 10**7)
    assert len(wide.levels) == 1
    some = points_for(Exponential(1.0, 1.0), 1e-4, 1e-30, 1, 30_000)
    assert len(some.levels) == 2


ENDS = np.array([-1.0, -0.25, 0.0, 0.5, 2.0])


@pytest.mark.parametrize(
    ("loss", "cell"),
    [
        (-1.5, -1),
        (-1.0, 0),
        (-0.3, 0),
        (-0.25, 1),
        (0.0, 2),
        (0.4999, 2),
        (1.9, 3),
        (2.0, 4),
        (9, 4),
    ],
)
def test_a_loss_lies_between_two_ends(loss: float, cell: int) -> None:
    found, part = cells(np.array([loss]), ENDS)
    assert found.tolist() == [cell]
    if 0 <= cell < 4:
        low, high = ENDS[cell], ENDS[cell + 1]
        b = float(part[0])
        assert (1 - b) * math.exp(-low) + b * math.exp(-high) == pytest.approx(math.exp(-loss))
        assert 0 <= b <= 1


def test_a_loss_at_an_end_stays_and_parts_are_never_outside_0_and_1() -> None:
    _, part = cells(np.array([-1.0, 0.5, -50.0, 50.0]), ENDS)
    assert part.tolist() == [0.0, 0.0, 0.0, 1.0]
    only, _ = cells(np.array([-1.0, 0.0, 1.0]), np.array([0.0]))
    assert only.tolist() == [-1, 0, 0]


def moved_by_definition(losses: Array, mass: Array, points: list[float]) -> tuple[Array, float]:
    found, beyond = np.zeros(len(points)), 0.0
    for at, m in zip(losses, mass, strict=True):
        if at > points[-1]:
            beyond += m
        elif at <= points[0]:
            found[0] += m
        else:
            i = max(k for k in range(len(points)) if points[k] < at)
            low, high = math.exp(-points[i]), math.exp(-points[i + 1])
            up = m * (low - math.exp(-at)) / (low - high)
            found[i] += m - up
            found[i + 1] += up
    return found, beyond


def test_moved_mass_is_where_both_members_keep_theirs() -> None:
    generator = np.random.default_rng(3)
    index = np.array([-9, -4, -3, 0, 2, 3, 10])
    for _ in range(20):
        losses = np.concatenate([generator.uniform(-3, 3, 30), [2.0, -1.8, 0.0, 2.5]])
        mass = generator.random(34)
        found, beyond = moved(losses, mass, index, 0.2)
        expected, above = moved_by_definition(losses, mass, [float(i) * 0.2 for i in index])
        assert found == pytest.approx(expected, rel=1e-9) and beyond == pytest.approx(above)


def test_moved_mass_on_one_point() -> None:
    found, beyond = moved(
        np.array([-1.0, 0.0, 1.0]), np.array([0.2, 0.3, 0.5]), np.zeros(1, int), 1
    )
    assert found.tolist() == pytest.approx([0.5]) and beyond == 0.5


def random_law(seed: int) -> PointLoss:
    """A law whose second member is one too: E[e^−loss] is the mass of losses that both can have."""
    generator = np.random.default_rng(seed)
    index = LEVELS.index
    losses = index * LEVELS.step
    weights = generator.random(len(index)) * np.exp(-3 * np.abs(losses + 0.05))
    mass = weights / weights.sum()
    tilt = float(np.log(mass @ np.exp(-losses)))
    mass = mass * np.exp(np.where(losses < 0, -tilt - 0.3, 0))
    return PointLoss(index, mass / (1.001 * mass.sum()), 1 - 1 / 1.001, 1e-12)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_split_laws_together_dominate_the_whole(seed: int, steps: int) -> None:
    whole = random_law(seed)
    parts = split(whole, LEVELS)
    assert [len(part.mass) > 0 for part in parts] == [True] * 3
    law, infinite = {0.0: 1.0}, 0.0
    for _ in range(steps):
        law = together(law, as_law(whole, LEVELS.step))
        infinite += (1 - infinite) * whole.infinite
    found, found_infinite = {0.0: 1.0}, 0.0
    for part in parts:
        for _ in range(steps):
            found = together(found, as_law(part, LEVELS.step))
            found_infinite += (1 - found_infinite) * part.infinite
    for epsilon in np.linspace(0, 10, 21):
        true = delta(law, infinite, epsilon)
        bound = delta(found, found_infinite, epsilon)
        assert true * (1 - 1e-12) <= bound <= 6 * true + 1e-3


@pytest.mark.parametrize("heavy", [0.0, 0.9])
def test_the_parts_of_a_law_are_its_levels(heavy: float) -> None:
    """Also where the bulk alone is no possible loss, so that the rest must move up."""
    whole = random_law(1)
    whole.mass[4] += heavy
    whole.mass[:] *= (1 - whole.infinite) / whole.mass.sum()
    first, second, last = split(whole, LEVELS)
    inside = slice(4, 12)
    bulk = whole.mass[inside] / whole.mass[inside].sum()
    assert first.index.tolist() == list(range(-3, 5))
    assert first.mass == pytest.approx(bulk) and first.infinite == first.slack == 0.0
    assert set(second.index.tolist()) <= {-8, -4, -3, 0, 4, 8, 12, 16}
    assert math.fsum(second.mass) == pytest.approx(1.0) and second.infinite == 0.0
    assert last.slack == whole.slack and last.infinite >= whole.infinite
    assert set(last.index.tolist()) >= {-32, -16, -8, 0, 16, 32, 48}
    # each level's law but the last is a possible loss once it is shifted, and the rest moves so far
    shift = math.log(math.fsum(bulk * np.exp(-losses_at(first.index, 0.125))))
    assert (shift > 0) == (heavy > 0)
    outer = [i for i in whole.index.tolist() if not -3 <= i <= 4]
    outside = [float(m) for i, m in as_law(whole, 1.0).items() if i in outer]
    points = LEVELS.outside(0)
    top = [*points.tolist(), *(48 + 16 * np.arange(1, 1 + max(0, math.ceil(shift / 2)))).tolist()]
    rest, _ = moved_by_definition(
        np.array(outer) * 0.125 + shift, np.array(outside), [i * 0.125 for i in top]
    )
    rest[top.index(0)] += math.fsum(whole.mass[inside])
    middle = [i for i, at in enumerate(top) if -8 <= at <= 16]
    expected = rest[middle] / rest[middle].sum()
    assert second.index.tolist() == [top[i] for i in middle]
    assert second.mass == pytest.approx(expected, rel=1e-9)
    assert math.fsum(last.mass) + last.infinite == pytest.approx(1.0, rel=1e-12)


def test_what_moves_beyond_the_last_point_finds_further_points() -> None:
    """The bulk is no possible loss, so everything outside it moves up by 0.3, past the end."""
    points = Points(0.125, (Level(-3, 4, 1), Level(-32, 52, 16)))
    losses = points.index * 0.125
    mass = np.where(points.index == -3, 0.9, 0.1 / (len(losses) - 1)) * 0.99
    inside = (points.index >= -3) & (points.index <= 4)
    bulk = mass[inside] / mass[inside].sum()
    shift = math.log(math.fsum(bulk * np.exp(-losses[inside])))
    first, last = split(PointLoss(points.index, mass, 0.01, 1e-12), points)
    assert 0 < shift < 2 and first.mass == pytest.approx(bulk)
    outer = [*points.outside(0).tolist(), 52 + 16]
    expected, beyond = moved_by_definition(
        losses[~inside] + shift, mass[~inside], [i * 0.125 for i in outer]
    )
    expected[outer.index(0)] += mass[inside].sum()
    assert last.index.tolist() == outer and beyond == 0.0
    assert last.mass == pytest.approx(expected, rel=1e-9)
    assert (last.infinite, last.slack) == (0.01, 1e-12)


def test_a_single_level_is_the_law_itself() -> None:
    points = Points(0.125, (Level(-3, 4, 1),))
    law = PointLoss(points.index, np.full(8, 0.125), 0.0, 1e-12)
    (only,) = split(law, points)
    assert only.index.tolist() == law.index.tolist() and only.mass.tolist() == [0.125] * 8
    assert (only.infinite, only.slack) == (0.0, 1e-12)
