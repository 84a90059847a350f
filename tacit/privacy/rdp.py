"""Rényi divergence of the Poisson-subsampled Gaussian (Mironov, Talwar and Zhang 2019).

Integrated numerically at real orders and for many noise levels at once, because dp-accounting
takes them one at a time (minutes for a decaying schedule); it is the second method in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from dp_accounting.rdp import compute_epsilon
from numpy.typing import NDArray

Array = NDArray[np.float64]

ORDERS: tuple[float, ...] = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *(float(order) for order in range(11, 65)),
    *(80.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0),
)
_SPACING = 0.1
_REACH = 12.0
_SMALLEST_SIGMA = 0.1


def poisson_gaussian(probability: float, sigma: float, orders: Sequence[float]) -> Array:
    """R(α; q, σ) under add-or-remove-one for each order.

    The trapezoid rule on the whole line converges faster than any power for this analytic
    integrand; the direction integrated, mixture against centre, is the larger of the two. Below
    a noise of 0.1 sampling hardly helps, and the value without sampling is taken.

    >>> float(poisson_gaussian(1.0, 2.0, [8.0])[0])
    1.0
    """
    alphas = np.asarray(orders, dtype=np.float64)
    if probability == 0:
        return np.zeros_like(alphas)
    if probability == 1 or sigma < _SMALLEST_SIGMA:
        return alphas / (2 * sigma**2)
    divergences = np.empty_like(alphas)
    for i, alpha in enumerate(alphas):
        z = np.arange(-_REACH, alpha / sigma + _REACH, _SPACING)
        tilt = np.logaddexp(
            math.log1p(-probability), math.log(probability) + z / sigma - 0.5 / sigma**2
        )
        log_terms = alpha * tilt - z**2 / 2
        peak = float(log_terms.max())
        log_sum = peak + math.log(float(np.exp(log_terms - peak).sum()))
        log_moment = log_sum + math.log(_SPACING / math.sqrt(2 * math.pi))
        divergences[i] = max(0.0, log_moment) / (alpha - 1)
    return divergences


def or_nothing(rate: float, divergences: Array, orders: Sequence[float]) -> Array:
    """Divergences of a release that a public coin of this rate lets happen.

    >>> float(or_nothing(0.5, np.array([2.24]), [2.0])[0]) < 2.24
    True
    """
    steeper = np.asarray(orders, dtype=np.float64) - 1
    if rate == 1:
        return divergences
    return np.logaddexp(math.log1p(-rate), math.log(rate) + steeper * divergences) / steeper


def epsilon_of(divergences: Array, delta: float) -> tuple[float, float]:
    """ε at δ from the divergences at `ORDERS`, and the order that gave it."""
    epsilon, order = compute_epsilon(ORDERS, divergences, delta)
    return float(epsilon), float(order)


def delta_of(divergences: Array, epsilon: float) -> float:
    """δ at ε from the divergences at `ORDERS` (Canonne, Kamath and Steinke 2020), or the distance
    of the two laws where that is less. As in dp-accounting, but for all orders at once.

    >>> f"{delta_of(poisson_gaussian(1.0, 2.0, ORDERS), 2.5):.1e}"
    '4.6e-07'
    """
    orders = np.asarray(ORDERS)
    logs = (orders - 1) * (divergences - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    distance = 0.5 * np.log(-np.expm1(-np.maximum(divergences, 0.0)) + 1e-300)
    return math.exp(min(0.0, float(np.minimum(logs, distance).min())))


def epsilon_at(order: float, divergence: float, delta: float) -> float:
    """ε at δ from the divergence at one order that was fixed in advance.

    >>> round(epsilon_at(8.0, 1.0, 1e-5), 4)
    2.2141
    """
    return float(compute_epsilon([order], [divergence], delta)[0])


def divergence_for(order: float, epsilon: float, delta: float) -> float:
    """The largest divergence of this order that costs at most ε at δ; negative where none does.

    >>> divergence_for(8.0, epsilon_at(8.0, 1.0, 1e-5), 1e-5) <= 1.0
    True
    """
    constant = math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
    found = epsilon - constant
    while found > 0 and epsilon_at(order, found, delta) > epsilon:
        found -= 1e-12 + found * 1e-12
    return found
