"""Trade-off functions: what the best attack on a run can reach at every rate of false alarms.

An attacker who is told one of two neighbouring datasets raises a false alarm with probability α
and misses with probability β. The trade-off function f(α) is the least β that any attack reaches
(Dong, Roth and Su 2022). Blind guessing has f(α) = 1 − α. A lower curve is less privacy, so a
bound from below is the safe one: every curve here is exact or below the true one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from tacit.errors import ArgumentError
from tacit.privacy import accountants, gaussian
from tacit.privacy.profiles import GaussianProfile, Profile
from tacit.privacy.relations import Relation

Array = NDArray[np.float64]

_SUPPORTS = 2000
_SMALLEST_DELTA = 1e-12


class TradeOff(Protocol):
    """A bound on every attack, in both directions of the neighbouring relation."""

    def misses(self, false_alarms: Array) -> Array:
        """At each α the smallest β that an attack can reach, never too large."""
        ...

    def delta(self, epsilon: float) -> float:
        """δ at this ε, never too small."""
        ...

    def epsilon(self, delta: float) -> float:
        """ε at this δ, never too small."""
        ...


def power(curve: TradeOff, false_alarms: float) -> float:
    """The largest rate of hits of an attack with this rate of false alarms, never too small.

    >>> round(power(GaussianTradeOff(1.0), 0.01), 4)
    0.0924
    """
    if not 0 <= false_alarms <= 1:
        raise ArgumentError(f"false_alarms is {false_alarms}; a rate lies between 0 and 1")
    return 1.0 - float(curve.misses(np.array([false_alarms]))[0])


@dataclass(frozen=True)
class GaussianTradeOff:
    """G_μ: telling N(0, 1) from N(μ, 1), exactly."""

    mu: float

    def misses(self, false_alarms: Array) -> Array:
        if math.isinf(self.mu):
            return np.zeros_like(false_alarms)
        return np.asarray(ndtr(ndtri(1.0 - false_alarms) - self.mu))

    def delta(self, epsilon: float) -> float:
        return gaussian.delta_of(self.mu, epsilon)

    def epsilon(self, delta: float) -> float:
        return gaussian.epsilon_of(self.mu, delta)


@dataclass(frozen=True)
class ComposedTradeOff:
    """The curve that supporting lines span: β ≥ 1 − δ(ε) − e^ε·α, and with α and β swapped.

    Each line holds by (ε, δ(ε))-privacy, so any choice of lines bounds the true curve from below.
    """

    profile: Profile
    epsilons: Array
    deltas: Array

    @classmethod
    def of(cls, profile: Profile) -> ComposedTradeOff:
        """Lines for ε from zero to where δ is negligible."""
        most = profile.epsilon(_SMALLEST_DELTA)
        if math.isinf(most):
            most = profile.epsilon(max(2 * profile.delta(1e6), _SMALLEST_DELTA))
        epsilons = np.linspace(0.0, most if math.isfinite(most) else 0.0, _SUPPORTS)
        return cls(profile, epsilons, np.array([profile.delta(float(e)) for e in epsilons]))

    def misses(self, false_alarms: Array) -> Array:
        alpha = false_alarms[:, None]
        steep = 1.0 - self.deltas - np.exp(np.minimum(self.epsilons, 700.0)) * alpha
        flat = np.exp(-self.epsilons) * (1.0 - self.deltas - alpha)
        return np.asarray(np.maximum(0.0, np.maximum(steep, flat).max(axis=1)))

    def delta(self, epsilon: float) -> float:
        return self.profile.delta(epsilon)

    def epsilon(self, delta: float) -> float:
        return self.profile.epsilon(delta)


def of(event: DpEvent, relation: Relation) -> TradeOff:
    """The trade-off function of everything that `event` releases.

    Exactly Gaussian where nothing is sampled; otherwise composed numerically from the pairs that
    the accountants use, an upper bound on δ at every ε.

    >>> from tacit.privacy import events
    >>> of(events.repeated(events.bounded_gaussian(5.0), 25), Relation.REPLACE_ONE).mu
    1.0
    """
    profile = accountants.profile(event, relation)
    if isinstance(profile, GaussianProfile):
        return GaussianTradeOff(profile.mu)
    return ComposedTradeOff.of(profile)


def limit_rate(sigma: float) -> float:
    """h(σ) of the central limit theorem for C_q(G_{1/σ}) (Dong, Roth and Su 2022, Cor. 5.4).

    >>> round(limit_rate(2.5 / 8**0.5), 5)
    1.51419
    """
    inverse = 1 / sigma
    if inverse**2 > 700:
        return math.inf
    squared = (
        math.exp(inverse**2) * float(ndtr(1.5 * inverse)) + 3 * float(ndtr(-0.5 * inverse)) - 2
    )
    return math.sqrt(max(0.0, squared))


def central_limit(rate: float, steps: float, sigma: float) -> GaussianTradeOff:
    """G_μ with μ = √2·rate·√steps·h(σ): an approximation, which is below the truth in places.

    >>> round(central_limit(64 / 54_000, 50 * 54_000 / 64, 2.5 / 8**0.5).mu, 5)
    0.52128
    """
    return GaussianTradeOff(math.sqrt(2 * steps) * rate * limit_rate(sigma))
