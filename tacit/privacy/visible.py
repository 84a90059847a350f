"""Gaussian releases whose takers-part are drawn by public coins, exactly and as a pair.

Whether a record takes part is visible and does not depend on its features, so given the coins a
run is Gaussian with μ² = fixed + k·μ₁², k the number of rounds in which the record took part, and
δ(ε) is the mean over k of the Gaussian δ: sampling does not hide a record, it only spares it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom

from tacit.errors import ArgumentError
from tacit.privacy.loss_points import Pair, PointLoss, Points

Array = NDArray[np.float64]

_TAIL = 1e-16
_SAFETY = 1e-9
_LARGEST = 1e6


def delta_of(rounds: int, rate: float, mu: float, fixed: float, epsilon: float) -> float:
    """Σ_k Binom(k; rounds, rate)·δ_G(√(fixed + k·mu²), ε), never too small."""
    low, high = binom.ppf(_TAIL, rounds, rate), binom.isf(_TAIL, rounds, rate)
    counts = np.arange(max(0.0, low), high + 1)
    weights = binom.pmf(counts, rounds, rate)
    return float(weights @ _deltas(np.sqrt(fixed + counts * mu**2), epsilon)) + 2 * _TAIL


def _deltas(mus: Array, epsilon: float) -> Array:
    mus = np.maximum(mus, 1e-12)
    upper = ndtr(-epsilon / mus + mus / 2)
    lower = np.exp(epsilon + log_ndtr(-epsilon / mus - mus / 2))
    return np.asarray(np.maximum(0.0, upper - lower))


def epsilon_of(rounds: int, rate: float, mu: float, fixed: float, delta: float) -> float:
    """The smallest ε with δ(ε) ≤ delta, rounded up.

    >>> round(epsilon_of(20_000, 0.005, 1.0, 0.0, 1e-5), 1)
    100.7
    """
    if not 0 < delta < 1:
        raise ArgumentError(f"delta is {delta}; it must lie strictly between 0 and 1")

    def excess(epsilon: float) -> float:
        return delta_of(rounds, rate, mu, fixed, epsilon) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
        if high > _LARGEST:
            return math.inf
    return float(brentq(excess, 0.0, high, xtol=1e-12)) * (1 + _SAFETY) + _SAFETY


@dataclass(frozen=True)
class OrNothing:
    """A public coin decides between `pair` and a step whose outcome tells nothing."""

    rate: float
    pair: Pair

    def span(self, tail: float) -> tuple[float, float]:
        low, high = self.pair.span(tail)
        return min(low, 0.0), max(high, 0.0)

    def variance(self) -> float:
        return self.rate * self.pair.variance()

    def on_points(self, points: Points, tail: float) -> PointLoss:
        """The pair's loss, scaled, and the rest of the mass at loss zero, which is a point."""
        inner = self.pair.on_points(points, tail)
        mass = self.rate * inner.mass
        mass[np.searchsorted(inner.index, 0)] += 1 - self.rate
        return PointLoss(inner.index, mass, self.rate * inner.infinite, inner.slack)
