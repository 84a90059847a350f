"""Privacy profiles: what a run costs at every ε and δ, all directions together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tacit.privacy import gaussian, pld, rdp


class Profile(Protocol):
    """δ at any ε and ε at any δ, both directions of the relation together, never too small."""

    def delta(self, epsilon: float) -> float: ...

    def epsilon(self, delta: float) -> float: ...


@dataclass(frozen=True)
class GaussianProfile:
    """N(0, 1) against N(μ, 1); everything is visible at μ = ∞."""

    mu: float

    def delta(self, epsilon: float) -> float:
        return gaussian.delta_of(self.mu, epsilon) if math.isfinite(self.mu) else 1.0

    def epsilon(self, delta: float) -> float:
        return gaussian.epsilon_of(self.mu, delta)


@dataclass(frozen=True)
class ComposedProfile:
    """The larger δ of all directions, at every ε."""

    losses: tuple[pld.ComposedLoss, ...]

    def delta(self, epsilon: float) -> float:
        return max(loss.delta(epsilon) for loss in self.losses)

    def epsilon(self, delta: float) -> float:
        return max(loss.epsilon(delta) for loss in self.losses)


@dataclass(frozen=True)
class RenyiProfile:
    """What follows from Rényi divergences at `rdp.ORDERS`."""

    divergences: tuple[float, ...]

    def delta(self, epsilon: float) -> float:
        return rdp.delta_of(np.array(self.divergences), epsilon)

    def epsilon(self, delta: float) -> float:
        return rdp.epsilon_of(np.array(self.divergences), delta)[0]


@dataclass(frozen=True)
class OneOrderProfile:
    """What a bound on the Rényi divergence of one order implies (Canonne et al. 2020)."""

    order: float
    divergence: float

    def delta(self, epsilon: float) -> float:
        exponent = (self.order - 1) * (self.divergence - epsilon + math.log1p(-1 / self.order))
        return math.exp(min(0.0, exponent - math.log(self.order)))

    def epsilon(self, delta: float) -> float:
        return rdp.epsilon_at(self.order, self.divergence, delta)
