"""Convolution of loss laws in the Fourier domain with errors relative to the tail in question.

A transform of probabilities has an error of about 1e-16 wherever a law has mass, which hides a δ
of that size. So every law is tilted first: its probabilities are multiplied by e^(tilt·loss) and
divided by their sum. Convolution and tilting commute, and with the right tilt the losses that
decide δ are where the tilted law has most of its mass. What could wrap around the circle, and the
rounding of the transforms, are bounded in the tilted law.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from tacit.privacy.loss_points import ROUNDING, Array, Index, PointLoss, losses_at

_PER_LEVEL = 4 * ROUNDING
_NEGLIGIBLE = -80.0
_ENOUGH = 40


@dataclass(frozen=True)
class TiltedLaw:
    """Probabilities e^(log_scale − tilt·loss)·mass of the losses index·step; the masses add to 1.

    Guarantee: the true law, times e^(tilt·loss − log_scale), differs from `mass` by a measure of
    at most e^slack − 1 in total, and by mass at infinity of at most `infinite`.
    """

    index: Index
    mass: Array
    log_scale: float
    infinite: float
    slack: float

    @property
    def off_zero(self) -> float:
        """The mass at losses other than zero."""
        return float(self.mass[self.index != 0].sum())

    def off_grid(self, stride: int) -> float:
        """The mass at losses that are no multiples of stride·step."""
        return float(self.mass[self.index % stride != 0].sum())

    def spread(self, step: float) -> tuple[float, float]:
        """Mean and variance of the tilted law."""
        losses = self.index * step
        mean = float(self.mass @ losses)
        return mean, float(self.mass @ (losses - mean) ** 2)


def log_moments(losses: Array, mass: Array, orders: Iterable[float]) -> Array:
    """ln Σ mass·e^(order·loss) for each order."""
    losses, mass = losses[mass > 0], mass[mass > 0]
    low, high = float(losses.min()), float(losses.max())
    found = []
    for order in orders:
        peak = order * (high if order > 0 else low)
        found.append(peak + math.log(float(mass @ np.exp(order * losses - peak))))
    return np.array(found)


Factors = Sequence[tuple[TiltedLaw, int]]


def tilted(law: PointLoss, tilt: float, step: float) -> TiltedLaw:
    """A law of losses, tilted."""
    with np.errstate(divide="ignore"):
        logs = np.log(law.mass) + tilt * (law.index * step)
    peak = float(logs.max())
    mass = np.exp(logs - peak)
    total = float(mass.sum())
    error = 4 * ROUNDING * (2 + abs(peak) + float(np.abs(tilt * law.index[[0, -1]] * step).max()))
    slack = law.slack + error
    return TiltedLaw(law.index, mass / total, peak + math.log(total), law.infinite, slack)


def coarser(law: TiltedLaw, ratio: int, stride: int, tilt: float, step: float) -> TiltedLaw:
    """A law on multiples of `stride` moved to multiples of ratio·stride, both members of the pair
    keeping their mass."""
    cell, rest = np.divmod(law.index // stride, ratio)
    first = int(cell[0])
    offset, unit = np.arange(ratio) * (stride * step), ratio * stride * step
    part = np.expm1(-offset) / math.expm1(-unit)
    stay = law.mass * ((1 - part) * np.exp(-tilt * offset))[rest]
    go = law.mass * (part * np.exp(tilt * (unit - offset)))[rest]
    index = np.arange(first, int(cell[-1]) + 2) * (ratio * stride)
    mass = np.bincount(cell - first, stay, len(index))
    mass += np.bincount(cell - first + 1, go, len(index))
    total = float(mass.sum())
    error = math.expm1(law.slack) * math.exp(tilt * unit) / total
    slack = math.log1p(error) + 16 * ROUNDING * (1 + tilt * unit)
    scale = law.log_scale + math.log(total)
    return TiltedLaw(index, mass / total, scale, law.infinite, slack)


def window(factors: Factors, step: float, tail: float) -> tuple[float, float]:
    """Where all but `tail` of the tilted law of all factors lies on either side (Chernoff).

    Any order gives a bound; which one is best is judged by some of the factors.
    """
    moments = [(law.spread(step), count) for law, count in factors]
    mean = sum(count * m for (m, _), count in moments)
    deviation = math.sqrt(sum(count * v for (_, v), count in moments)) or step
    every = -(-len(factors) // _ENOUGH)
    some, log_tail = factors[::every], math.log(tail)
    furthest = max(int(np.abs(law.index[[0, -1]]).max()) for law, _ in factors) * step or step
    start = min(math.sqrt(-2 * log_tail) / deviation, -log_tail / furthest)
    ends = []
    for sign in (-1.0, 1.0):

        def reach(order: float, sign: float = sign) -> float:
            return _furthest(some, sign * order, step, log_tail / every) * sign

        order = _least(reach, start, max(deviation / 4, step))
        ends.append(_furthest(factors, sign * order, step, log_tail))
    return min(ends[0], mean - step), max(ends[1], mean + step)


def _furthest(factors: Factors, order: float, step: float, log_tail: float) -> float:
    """A loss that all factors together exceed, or for a negative order fall below, with at most
    the probability whose logarithm is given."""
    log_moment = math.fsum(
        count * float(log_moments(losses_at(law.index, step), law.mass, [order])[0])
        for law, count in factors
    )
    return (log_moment - log_tail) / order


def _least(function: Callable[[float], float], start: float, gain: float) -> float:
    """Where a function with one minimum is small: start times a power of two, as long as each
    factor of two gains so much."""
    best = function(start)
    for factor in (2.0, 0.5):
        while (other := function(start * factor)) < best - gain:
            start, best = start * factor, other
    return start


def convolved(factors: Factors, stride: int, step: float, tail: float) -> TiltedLaw:
    """All factors together, each as often as its count says.

    All indices must be multiples of `stride`. `tail` bounds what may wrap around.
    """
    if len(factors) == 1 and factors[0][1] == 1:
        return factors[0][0]
    unit = stride * step
    low, high = window(factors, step, tail)
    first, needed = math.floor(low / unit), math.ceil((high - low) / unit) + 3
    size = next_fast_len(needed, real=True)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    log_size = np.zeros(size // 2 + 1)
    log_most = np.zeros(size // 2 + 1)
    level = _PER_LEVEL * math.log2(2 * size)
    for law, count in factors:
        transform = rfft(np.bincount((law.index // stride) % size, law.mass, size))
        magnitude = np.abs(transform)
        with np.errstate(divide="ignore"):
            log_size += count * np.log(magnitude)
        log_most += count * np.log(magnitude + level)
        _multiply(spectrum, transform, count, log_size > _NEGLIGIBLE)
    seen = log_size > _NEGLIGIBLE
    error = np.exp(log_most)
    error[seen] = np.exp(log_size[seen]) * np.expm1(log_most[seen] - log_size[seen])
    total_count = sum(count for _, count in factors)
    error += np.abs(spectrum) * (16 * ROUNDING * (total_count + len(factors)))
    rounding = math.sqrt(2 * float(error @ error))
    rounding += level * math.sqrt(2 * float(np.abs(spectrum) @ np.abs(spectrum)))
    mass = np.roll(np.maximum(irfft(spectrum, size), 0.0), -(first % size))
    total = float(mass.sum())
    return TiltedLaw(
        (first + np.arange(size)) * stride,
        mass / total,
        sum(n * law.log_scale for law, n in factors) + math.log(total),
        sum(n * law.infinite for law, n in factors),
        sum(n * law.slack for law, n in factors) + math.log1p((rounding + tail) / total),
    )


def _multiply(spectrum: np.ndarray, transform: np.ndarray, count: int, seen: np.ndarray) -> None:
    """Multiply by transform^count where the product matters, set it to zero elsewhere."""
    spectrum[~seen] = 0
    if count == 1:
        spectrum *= transform
    else:
        spectrum[seen] *= np.exp(count * np.log(transform[seen]))
