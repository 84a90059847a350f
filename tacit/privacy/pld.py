"""Privacy loss distributions composed in the Fourier domain, every error on the safe side.

Written by hand because dp-accounting composes unequal events one by one (minutes for a schedule
of 2,000 noise levels, where this takes half a minute) and resolves no δ below 1e-10; its PLD is the
second method in the tests.

A mechanism is represented by a pair of distributions that dominates it. Its loss is put on the
points of a grid so that both members of the pair keep their mass (Doroshenko et al. 2022), which
can only raise δ(ε). Laws are tilted towards the losses that decide the δ in question before they
are convolved, so that rounding is small relative to that δ however small it is; what is cut off,
what could wrap around and the rounding of the transforms are each bounded and added to δ.

Many equal steps are composed in blocks: a block is composed on the fine grid, moved to a coarser
one, and the blocks are composed there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tacit.privacy.loss_points import Array, Pair, PointLoss, losses_at, points_for, split
from tacit.privacy.tilted import TiltedLaw, coarser, convolved, log_moments, tilted, window
from tacit.privacy.tilted_tail import TiltedTail, log_peak

_TAIL = 1e-40
_WRAPPED = 1e-11
_GRID_TOLERANCE = 5e-5
_SMALLEST_STEP = 1e-13
_LARGEST_LOSS = 600.0
_POINTS = 1 << 13
_FEW, _MANY, _MANY_STEPS = 1 << 11, 1 << 15, 250
_BULK, _MOST_POINTS = 1e-4, 1 << 16
_CUT = 1e-4
_CHERNOFF_EXCESS = 15.0
_SMALLEST_SCALE = 1e-30
_MOST_ADDED = 1
_LARGEST_RATIO = 8
_ENOUGH = 100
_COARSE_TILTS = 2.0 ** np.arange(-8.0, 11.0)
_FINE_TILTS = 2.0 ** np.array([-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75])


Laws = list[tuple[TiltedLaw, int]]


@dataclass(frozen=True)
class Factor:
    """A law on multiples of stride·step that takes part `count` times."""

    law: PointLoss
    stride: int
    count: int


class ComposedLoss:
    """The loss of a whole run: δ at any ε, ε at any δ, neither ever too small."""

    def __init__(self, factors: Sequence[Factor], step: float) -> None:
        self._factors = factors
        self._step = step
        self._cuts: dict[float, _Cut] = {}

    def delta(self, epsilon: float) -> float:
        """An upper bound on δ(ε)."""
        found, scale = 1.0, 2.0
        while _SMALLEST_SCALE < found < scale:
            scale = _scale_of(found)
            found = min(found, self._cut(scale).delta(epsilon))
        return found

    def epsilon(self, delta: float) -> float:
        """The smallest ε ≥ 0 whose bound on δ(ε) is at most `delta`."""
        return self._cut(_scale_of(delta)).epsilon(delta)

    def _cut(self, scale: float) -> _Cut:
        if scale not in self._cuts:
            total = sum(factor.count for factor in self._factors)
            allowed = _CUT * scale / total
            factors = [Factor(f.law.cut(allowed), f.stride, f.count) for f in self._factors]
            self._cuts[scale] = _Cut(factors, self._step)
        return self._cuts[scale]


class _Cut:
    """The loss of a run whose largest losses count as infinite."""

    def __init__(self, factors: Sequence[Factor], step: float) -> None:
        self._factors = factors
        self._step = step
        self._infinite = min(1.0, math.fsum(f.count * f.law.infinite for f in factors))
        self._log_moments: dict[float, float] = {}
        self._tails: dict[float, TiltedTail] = {}

    def delta(self, epsilon: float) -> float:
        if self._infinite >= 1:
            return 1.0
        return min(1.0, self._tail(self._tilt(epsilon)).delta(epsilon) + self._infinite)

    def epsilon(self, delta: float) -> float:
        wanted = delta - self._infinite
        if wanted <= 0:
            return math.inf
        likely = math.log(min(wanted * _CHERNOFF_EXCESS, 1.0))
        guess, _ = self._best(lambda tilt, moment: (moment + log_peak(tilt) - likely) / tilt)
        found: dict[float, float] = {}
        tilt = self._tilt(max(0.0, guess))
        while tilt not in found:
            found[tilt] = self._tail(tilt).epsilon(wanted)
            tilt = self._tilt(found[tilt])
        return max(found[tilt], *list(found.values())[list(found).index(tilt) :])

    def _tilt(self, epsilon: float) -> float:
        """The tilt for δ at this ε: that of the least Chernoff bound."""
        return self._best(lambda tilt, moment: moment + log_peak(tilt) - tilt * epsilon)[1]

    def _best(self, objective: Callable[[float, float], float]) -> tuple[float, float]:
        """The least value of an objective of (tilt, ln E[e^(tilt·loss)]), and its tilt.

        No bound rests on it, so of many factors some are enough.
        """

        def least(tilts: Array) -> tuple[float, float]:
            self._fill(tilts)
            return min((objective(float(t), self._log_moments[float(t)]), float(t)) for t in tilts)

        return least(least(_COARSE_TILTS)[1] * _FINE_TILTS)

    def _fill(self, tilts: Array) -> None:
        missing = [float(t) for t in tilts if float(t) not in self._log_moments]
        total = np.zeros(len(missing))
        every = -(-len(self._factors) // _ENOUGH)
        for f in self._factors[::every] if missing else ():
            total += (
                every
                * f.count
                * log_moments(losses_at(f.law.index, self._step), f.law.mass, missing)
            )
        self._log_moments |= dict(zip(missing, total.tolist(), strict=True))

    def _tail(self, tilt: float) -> TiltedTail:
        if tilt not in self._tails:
            self._tails[tilt] = TiltedTail.of(
                _composed(self._factors, tilt, self._step), tilt, self._step
            )
        return self._tails[tilt]


def _scale_of(delta: float) -> float:
    """The power of ten at or next below a δ."""
    scale = 10.0 ** math.floor(math.log10(delta))
    return max(scale if scale <= delta else scale / 10, _SMALLEST_SCALE)


def is_unbounded(pair: Pair) -> bool:
    """Whether a single loss may be too large for any finite ε."""
    return pair.span(_TAIL)[1] > _LARGEST_LOSS


def unbounded() -> ComposedLoss:
    """A loss that may be infinite for certain: δ(ε) is one at every ε."""
    return ComposedLoss([Factor(PointLoss(np.zeros(1, int), np.ones(1), 1.0), 1, 1)], 1.0)


def compose(parts: Sequence[tuple[Pair, int]]) -> ComposedLoss:
    """The loss of all pairs together, each as often as its count says."""
    if any(is_unbounded(pair) for pair, _ in parts):
        return unbounded()
    total = sum(count for _, count in parts)
    variances = [pair.variance() for pair, _ in parts]
    mean = math.fsum(n * v for v, (_, n) in zip(variances, parts, strict=True)) / total
    step = max(math.sqrt(6 * _GRID_TOLERANCE * mean), _SMALLEST_STEP)
    factors: list[Factor] = []
    for variance, (pair, count) in zip(variances, parts, strict=True):
        stride = _first_stride(pair, step, math.sqrt(variance / mean) if mean else 1.0)
        laws = _on_points(pair, step, stride, _FEW if total > _MANY_STEPS else _MANY)
        factors += [Factor(law, each, count) for law, each in laws]
    return ComposedLoss(factors, step)


def _first_stride(pair: Pair, step: float, wider: float) -> int:
    """A power of two, larger for a pair whose loss varies more than most or over a wide range."""
    low, high = pair.span(_BULK)
    finest = max(wider, (max(high, 0.0) - min(low, 0.0)) / (step * _MOST_POINTS), 1.0)
    return 1 << math.floor(math.log2(finest))


@lru_cache(maxsize=64)
def _on_points(pair: Pair, step: float, stride: int, few: int) -> tuple[tuple[PointLoss, int], ...]:
    """The laws of one step, with their strides, whose convolution is that of the pair's loss."""
    points = points_for(pair, step, _TAIL, stride, few)
    laws = split(pair.on_points(points, _TAIL), points)
    return tuple(zip(laws, (level.stride for level in points.levels), strict=True))


def _composed(factors: Sequence[Factor], tilt: float, step: float) -> TiltedLaw:
    """The tilted law of all factors, on as coarse a grid as costs little."""
    laws = [tilted(factor.law, tilt, step) for factor in factors]
    groups: dict[int, Laws] = {}
    for law, factor in zip(laws, factors, strict=True):
        groups.setdefault(factor.stride, []).append((law, factor.count))
    everything = [each for group in groups.values() for each in group]
    low, high = window(everything, step, _WRAPPED)
    last = _last_stride(groups, (high - low) / step)
    found: list[tuple[TiltedLaw, int]] = []
    for stride, group in groups.items():
        if stride >= last:
            found.append((convolved(group, stride, step, _WRAPPED), 1))
        else:
            found += _in_blocks(group, stride, last, tilt, step)
    return convolved(found, last, step, _WRAPPED)


def _in_blocks(laws: Laws, stride: int, last: int, tilt: float, step: float) -> Laws:
    """Laws on multiples of `stride`, composed in blocks until multiples of `last` are left."""
    while stride < last and laws:
        ratio = min(last // stride, _LARGEST_RATIO)
        coarse: Laws = []
        few: Laws = []
        for law, count in laws:
            size = _block_size(count, ratio**2)
            blocks, rest = divmod(count, size)
            if blocks:
                whole = convolved([(law, size)], stride, step, _WRAPPED / blocks)
                coarse.append((coarser(whole, ratio, stride, tilt, step), blocks))
            if rest:
                few.append((law, rest))
        for block in _blocks_of(few, ratio**2):
            whole = convolved(block, stride, step, _WRAPPED / len(few))
            coarse.append((coarser(whole, ratio, stride, tilt, step), 1))
        laws, stride = coarse, stride * ratio
    return laws


def _blocks_of(laws: Laws, most: int) -> list[Laws]:
    """Laws in blocks of at most so many steps, each law less than a block."""
    found: list[Laws] = []
    steps = most
    for law, count in laws:
        if steps + count > most:
            found.append([])
            steps = 0
        found[-1].append((law, count))
        steps += count
    return found


def _block_size(count: int, most: int) -> int:
    """A number of steps, not much below `most`, that leaves few of `count` over."""
    return min(range(most, most // 2, -1), key=lambda size: count % size)


def _last_stride(groups: dict[int, Laws], length: float) -> int:
    """The stride on which everything is put together.

    Doubled while there are many points, and while moving each block of steps to it adds no more
    to the variance of the losses than the first grid did.
    """
    first = sum(
        n * stride**2 * law.off_zero for stride, group in groups.items() for law, n in group
    )
    last = 1
    while length > _POINTS * last:
        coarse = 2 * last
        added = sum(
            coarse**2 * _blocks_off_grid(group, coarse, (coarse // stride) ** 2)
            for stride, group in groups.items()
            if stride < coarse
        )
        if added > _MOST_ADDED * first:
            break
        last = coarse
    return last


def _blocks_off_grid(laws: Laws, stride: int, size: int) -> float:
    """How many blocks of so many steps there are, times the mass of a step off the grid."""
    steps = sum(count for _, count in laws)
    off = sum(count * law.off_grid(stride) for law, count in laws) / steps
    return off * -(-steps // size)
