"""Privacy loss distributions composed in the Fourier domain, every error on the safe side.

Written by hand because dp-accounting composes unequal events one by one (minutes for a schedule
of 2,000 noise levels, where this takes seconds); its PLD is the second method in the tests.

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
from scipy.signal import lfilter

from tacit.privacy.loss_points import ROUNDING, Array, Pair, PointLoss, points_for, split
from tacit.privacy.tilted import TiltedLaw, coarser, convolved, log_moments, tilted, window

_TAIL = 1e-40
_WRAPPED = 1e-11
_GRID_TOLERANCE = 5e-5
_SMALLEST_STEP = 1e-13
_LARGEST_LOSS = 600.0
_POINTS = 1 << 13
_BULK, _MOST_POINTS = 1e-4, 1 << 16
_CUT = 1e-4
_CHERNOFF_EXCESS = 15.0
_SMALLEST_SCALE = 1e-30
_MOST_ADDED = 1
_LARGEST_RATIO = 8
_ENOUGH = 100
_COARSE_TILTS = 2.0 ** np.arange(-8.0, 11.0)
_FINE_TILTS = 2.0 ** np.array([-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75])


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
        self._tails: dict[float, _Tail] = {}

    def delta(self, epsilon: float) -> float:
        if self._infinite >= 1:
            return 1.0
        return min(1.0, self._tail(self._tilt(epsilon)).delta(epsilon) + self._infinite)

    def epsilon(self, delta: float) -> float:
        wanted = delta - self._infinite
        if wanted <= 0:
            return math.inf
        likely = math.log(min(wanted * _CHERNOFF_EXCESS, 1.0))
        guess, _ = self._best(lambda tilt, moment: (moment + _log_peak(tilt) - likely) / tilt)
        found: dict[float, float] = {}
        tilt = self._tilt(max(0.0, guess))
        while tilt not in found:
            found[tilt] = self._tail(tilt).epsilon(wanted)
            tilt = self._tilt(found[tilt])
        return max(found[tilt], *list(found.values())[list(found).index(tilt) :])

    def _tilt(self, epsilon: float) -> float:
        """The tilt for δ at this ε: that of the least Chernoff bound."""
        return self._best(lambda tilt, moment: moment + _log_peak(tilt) - tilt * epsilon)[1]

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
            total += every * f.count * log_moments(f.law.index * self._step, f.law.mass, missing)
        self._log_moments |= dict(zip(missing, total.tolist(), strict=True))

    def _tail(self, tilt: float) -> _Tail:
        if tilt not in self._tails:
            self._tails[tilt] = _Tail.of(_composed(self._factors, tilt, self._step), tilt, self._step)
        return self._tails[tilt]


@dataclass(frozen=True)
class _Tail:
    """δ(ε) of a tilted law: Σ over ℓ > ε of (1 − e^(ε−ℓ))·e^(log_scale − tilt·ℓ)·mass."""

    tilt: float
    log_scale: float
    first: float
    step: float
    decaying: Array
    """Σ_{j ≥ i} e^(−tilt·(ℓ_j − ℓ_i))·mass_j."""
    steeper: Array
    """The same with tilt + 1."""
    error: float

    @classmethod
    def of(cls, law: TiltedLaw, tilt: float, step: float) -> _Tail:
        """Suffix sums of a tilted law on equally spaced losses."""
        unit = (int(law.index[1] - law.index[0]) if len(law.index) > 1 else 1) * step
        decaying, steeper = (_decaying(law.mass, t * unit) for t in (tilt, tilt + 1))
        error = math.expm1(law.slack) * math.exp(_log_peak(tilt))
        return cls(
            tilt, law.log_scale, int(law.index[0]) * step, unit, decaying, steeper, error
        )

    def delta(self, epsilon: float) -> float:
        """An upper bound on δ(ε), infinite losses apart."""
        log_factor = self.log_scale - self.tilt * epsilon
        if log_factor > 700:
            return 1.0
        size = len(self.decaying)
        i = min(max(0, math.ceil((epsilon - self.first) / self.step)), size)
        found = self.error
        if i < size:
            gap = max(0.0, self.first + i * self.step - epsilon)
            flat = math.exp(-self.tilt * gap) * float(self.decaying[i])
            steep = math.exp(-(self.tilt + 1) * gap) * float(self.steeper[i])
            found += max(0.0, flat - steep) + 8 * ROUNDING * size * flat
        return min(1.0, math.exp(log_factor) * found)

    def epsilon(self, delta: float) -> float:
        """The smallest ε ≥ 0 whose bound on δ(ε) is at most `delta`, to all digits."""
        low, high = 0.0, 1.0
        if self.delta(low) <= delta:
            return 0.0
        while self.delta(high) > delta:
            low, high = high, 2 * high
        while low < (middle := (low + high) / 2) < high:
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high


def _scale_of(delta: float) -> float:
    """The power of ten at or next below a δ."""
    scale = 10.0 ** math.floor(math.log10(delta))
    return max(scale if scale <= delta else scale / 10, _SMALLEST_SCALE)


def _decaying(mass: Array, rate: float) -> Array:
    """Σ_{j ≥ i} e^(−rate·(j − i))·mass_j."""
    return np.asarray(lfilter([1.0], [1.0, -math.exp(-rate)], mass[::-1])[::-1].copy())


def _log_peak(tilt: float) -> float:
    """ln of the largest (1 − e^−x)·e^(−tilt·x), which bounds what one unit of mass adds to δ."""
    return -math.log1p(tilt) - tilt * math.log1p(1 / tilt)


def compose(parts: Sequence[tuple[Pair, int]]) -> ComposedLoss:
    """The loss of all pairs together, each as often as its count says."""
    total = sum(count for _, count in parts)
    variances = [pair.variance() for pair, _ in parts]
    mean = math.fsum(n * v for v, (_, n) in zip(variances, parts, strict=True)) / total
    step = max(math.sqrt(6 * _GRID_TOLERANCE * mean), _SMALLEST_STEP)
    factors: list[Factor] = []
    for variance, (pair, count) in zip(variances, parts, strict=True):
        if pair.span(_TAIL)[1] > _LARGEST_LOSS:
            return ComposedLoss([Factor(PointLoss(np.zeros(1, int), np.ones(1), 1.0), 1, 1)], step)
        stride = _first_stride(pair, step, math.sqrt(variance / mean) if mean else 1.0)
        factors += [Factor(law, each, count) for law, each in _on_points(pair, step, stride)]
    return ComposedLoss(factors, step)


def _first_stride(pair: Pair, step: float, wider: float) -> int:
    """A power of two, larger for a pair whose loss varies more than most or over a wide range."""
    low, high = pair.span(_BULK)
    finest = max(wider, (max(high, 0.0) - min(low, 0.0)) / (step * _MOST_POINTS), 1.0)
    return 1 << math.floor(math.log2(finest))


@lru_cache(maxsize=64)
def _on_points(pair: Pair, step: float, stride: int) -> tuple[tuple[PointLoss, int], ...]:
    """The laws of one step, with their strides, whose convolution is that of the pair's loss."""
    points = points_for(pair, step, _TAIL, stride)
    laws = split(pair.on_points(points, _TAIL), points)
    return tuple(zip(laws, (level.stride for level in points.levels), strict=True))


def _composed(factors: Sequence[Factor], tilt: float, step: float) -> TiltedLaw:
    """The tilted law of all factors, on as coarse a grid as costs little."""
    laws = [tilted(factor.law, tilt, step) for factor in factors]
    groups: dict[int, list[tuple[TiltedLaw, int]]] = {}
    for law, factor in zip(laws, factors, strict=True):
        groups.setdefault(factor.stride, []).append((law, factor.count))
    everything = [each for group in groups.values() for each in group]
    low, high = window(everything, step, _WRAPPED)
    last = _last_stride(groups, (high - low) / step)
    found: list[tuple[TiltedLaw, int]] = []
    for stride, group in groups.items():
        if stride >= last:
            found.append((convolved(group, stride, step, _WRAPPED), 1))
            continue
        for law, count in group:
            found += _in_blocks(law, count, stride, last, tilt, step)
    return convolved(found, last, step, _WRAPPED)


def _in_blocks(
    law: TiltedLaw, count: int, stride: int, last: int, tilt: float, step: float
) -> list[tuple[TiltedLaw, int]]:
    """A law on multiples of `stride`, composed in blocks until multiples of `last` are left."""
    found: list[tuple[TiltedLaw, int]] = []
    while stride < last and count:
        ratio = min(last // stride, _LARGEST_RATIO)
        size = _block_size(count, ratio**2)
        blocks, rest = divmod(count, size)
        if rest:
            whole = convolved([(law, rest)], stride, step, _WRAPPED)
            found.append((coarser(whole, last // stride, stride, tilt, step), 1))
        if blocks:
            whole = convolved([(law, size)], stride, step, _WRAPPED / blocks)
            law = coarser(whole, ratio, stride, tilt, step)
        count, stride = blocks, stride * ratio
    return [*found, (law, count)] if count else found


def _block_size(count: int, most: int) -> int:
    """A number of steps, not much below `most`, that leaves few of `count` over."""
    return min(range(most, most // 2, -1), key=lambda size: count % size)


def _last_stride(groups: dict[int, list[tuple[TiltedLaw, int]]], length: float) -> int:
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
            -(-n // (coarse // stride) ** 2) * coarse**2 * law.off_grid(coarse)
            for stride, group in groups.items()
            if stride < coarse
            for law, n in group
        )
        if added > _MOST_ADDED * first:
            break
        last = coarse
    return last
