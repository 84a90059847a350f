"""The Gaussian mechanism, exactly (Balle and Wang 2018; Dong, Roth and Su 2022)."""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from tacit.errors import ArgumentError

_SAFETY = 1e-9


def delta_of(mu: float, epsilon: float) -> float:
    """δ(ε) of N(0, 1) against N(μ, 1): Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)."""
    if mu == 0:
        return 0.0
    upper = float(ndtr(-epsilon / mu + mu / 2))
    return max(0.0, upper - math.exp(epsilon + float(log_ndtr(-epsilon / mu - mu / 2))))


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest ε with δ(ε) ≤ delta, rounded up.

    >>> round(epsilon_of(1.0, 1e-5), 5)
    4.37718
    """
    if not 0 < delta < 1:
        raise ArgumentError(f"delta is {delta}; it must lie strictly between 0 and 1")
    if mu < 0 or math.isnan(mu):
        raise ArgumentError(f"mu is {mu}; it must not be negative")
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    if math.isinf(mu) or mu > 1e3:
        return math.inf
    high = mu * mu / 2 + mu * 40
    root = float(brentq(lambda eps: delta_of(mu, eps) - delta, 0.0, high, xtol=1e-12))
    return root * (1 + _SAFETY) + _SAFETY
