"""Privacy losses on points of a grid that is fine near zero and coarser in the tails.

All points are multiples of one step, so laws on them can be convolved; where a law has little
mass the points lie further apart, which keeps a step that is sampled at a tiny rate small.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]

ROUNDING = 2.0**-52
_FIRST_TAIL = 1e-4
_TAIL_RATIO = 2.0**-12
_STRIDE_RATIO = 64
_POINTS_TO_ZERO = 64


def losses_at(index: Index, step: float) -> Array:
    """The losses at multiples of a step."""
    return np.multiply(index, step, dtype=np.float64)


@dataclass(frozen=True)
class Level:
    """Indices from `low` to `high`, `stride` apart, around those of the levels before."""

    low: int
    high: int
    stride: int


@dataclass(frozen=True)
class Points:
    """Losses index·step at which a law may have mass, ascending; zero is one of them."""

    step: float
    levels: tuple[Level, ...]

    @cached_property
    def index(self) -> Index:
        """The points as multiples of the step."""
        return self.outside(-1)

    def outside(self, level: int) -> Index:
        """The points of all levels beyond this one, its ends, and zero."""
        below, above = [], []
        low, high = 0, 0
        if level >= 0:
            low, high = self.levels[level].low, self.levels[level].high
            below, above = [np.array([low])] if low else [], [np.array([high])] if high else []
        for each in self.levels[level + 1 :]:
            below.append(np.arange(each.low, low, each.stride))
            above.append(np.arange(high + each.stride, each.high + 1, each.stride))
            low, high = each.low, each.high
        return np.concatenate((*below[::-1], np.zeros(1, dtype=np.int64), *above))


@dataclass(frozen=True)
class PointLoss:
    """Probabilities of the losses index·step, and of an infinite loss.

    Guarantee: the law described has nowhere a smaller δ(ε) than the true one once every
    probability is multiplied by e^slack.
    """

    index: Index
    mass: Array
    infinite: float
    slack: float = 0.0

    def cut(self, mass: float) -> PointLoss:
        """The largest losses, of at most this mass together, made infinite, and the smallest ones
        moved up to one point; either can only raise δ(ε)."""
        first = min(int(np.searchsorted(np.cumsum(self.mass), mass)), len(self.mass) - 1)
        above = np.cumsum(self.mass[::-1])[::-1]
        last = max(first + 1, int(np.searchsorted(-above, -mass)))
        kept = self.mass[first:last].copy()
        kept[0] += math.fsum(self.mass[:first])
        infinite = self.infinite + math.fsum(self.mass[last:])
        return PointLoss(self.index[first:last], kept, infinite, self.slack)


class Pair(Hashable, Protocol):
    """A pair of distributions that dominates one step of a mechanism."""

    def span(self, tail: float) -> tuple[float, float]:
        """A range of losses outside which the first member has at most `tail` on either side."""
        ...

    def variance(self) -> float:
        """Variance of the loss, to choose a grid; no bound rests on it."""
        ...

    def on_points(self, points: Points, tail: float) -> PointLoss:
        """The loss moved to `points` so that δ(ε) is nowhere too small."""
        ...


def points_for(pair: Pair, step: float, tail: float, stride: int, few: int) -> Points:
    """Points that cover all but `tail` of a pair's loss on either side, `stride` steps apart.

    If that takes more than `few` points, the step grows where less mass is left: by 64 where the
    mass falls by 64², which adds the same variance, and never to more than 1/64 of the distance
    to zero.
    """
    low, high = pair.span(tail)
    low, high = min(low, 0.0) / step, max(high, 0.0) / step
    levels: list[Level] = []
    left = _FIRST_TAIL
    while high - low > few * stride and left > tail:
        near, far = (end / step for end in pair.span(left))
        reach = max(-near, far)
        coarser = stride
        while coarser < stride * _STRIDE_RATIO and 2 * coarser * _POINTS_TO_ZERO <= reach:
            coarser *= 2
        if coarser > stride:
            ends = min(near, 0.0) / coarser, max(far, 0.0) / coarser
            levels.append(
                Level(math.floor(ends[0]) * coarser, math.ceil(ends[1]) * coarser, stride)
            )
            stride = coarser
        left *= _TAIL_RATIO
    ends = math.floor(low / stride) * stride, math.ceil(high / stride) * stride
    if levels:
        ends = min(ends[0], levels[-1].low), max(ends[1], levels[-1].high)
    return Points(step, (*levels, Level(*ends, stride)))


def cells(losses: Array, ends: Array) -> tuple[Index, Array]:
    """The interval between two of the ascending `ends` that each loss lies in, and which part of
    its mass moves to the upper end so that both members of the pair keep theirs.

    Losses below the first end, or from the last on, get the intervals −1 and len(ends) − 1.
    """
    cell = np.searchsorted(ends, losses, side="right") - 1
    inside = np.clip(cell, 0, max(len(ends) - 2, 0))
    low, high = ends[inside], ends[np.minimum(inside + 1, len(ends) - 1)]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        part = np.expm1(low - losses) / np.expm1(low - high)
    return cell, np.clip(np.nan_to_num(part, nan=0.0), 0.0, 1.0)


def moved(losses: Array, mass: Array, index: Index, step: float) -> tuple[Array, float]:
    """Mass at any losses moved to the points `index`, and the mass beyond the last of them.

    Both members of the pair keep their mass, which can only raise δ(ε) (Doroshenko et al. 2022);
    what lies below the first point moves up to it.
    """
    cell, part = cells(losses, losses_at(index, step))
    below, beyond = cell < 0, (cell == len(index) - 1) & (losses > index[-1] * step)
    start = np.clip(cell, 0, len(index) - 1)
    stay = np.where(below, mass, mass * (1 - part)) * ~beyond
    go = mass * part * ~(below | beyond)
    found = np.zeros(len(index))
    np.add.at(found, start, stay)
    np.add.at(found, np.minimum(start + 1, len(index) - 1), go)
    return found, float(mass[beyond].sum())


def split(law: PointLoss, points: Points) -> list[PointLoss]:
    """Laws whose convolution dominates `law`, one per level, each on that level's points.

    With a the mass of the innermost level, B its law and R the rest, n steps have the loss
    Σ_k C(n, k)·a^(n−k)·B^(n−k)∗R^k. Let s be the shift, of either sign, that makes B a
    possible loss, E_B[e^−(ℓ+s)] ≤ 1; convolving with such a law can only raise δ(ε). Hence that
    sum is dominated by B^n ∗ (a·[0] + [s]∗R)^n, and the second factor is split in the same way.
    """
    found: list[PointLoss] = []
    index, mass, infinite = law.index, law.mass, law.infinite
    for i, level in enumerate(points.levels[:-1]):
        inside = (index >= level.low) & (index <= level.high)
        total = float(mass[inside].sum())
        bulk = mass[inside] / total
        loss = index[inside] * points.step
        shift = math.log(math.fsum(bulk * np.exp(-loss))) + 8 * ROUNDING
        found.append(PointLoss(index[inside], bulk, 0.0))
        outer = points.outside(i)
        stride = points.levels[-1].stride
        extra = max(0, math.ceil(shift / (points.step * stride)))
        outer = np.append(outer, outer[-1] + stride * np.arange(1, extra + 1))
        losses = losses_at(index[~inside], points.step) + shift
        rest, beyond = moved(losses, mass[~inside], outer, points.step)
        rest[np.searchsorted(outer, 0)] += total
        index, mass, infinite = outer, rest, infinite + beyond
    return [*found, PointLoss(index, mass, infinite, law.slack)]
