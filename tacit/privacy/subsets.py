"""The loss of a release on a uniform subset of fixed size: C_q(G_μ) of Dong, Roth and Su (2022).

A record is in the subset with probability q. Whether it is in, or is replaced by another, moves
the released vector by at most one unit, so a step is at least as private as the trade-off
function C_q(G) = min(f_q, f_q⁻¹)** with f_q = q·G + (1 − q)·Id. In terms of δ(ε) that is the
larger of the two directions at every ε, and it is this maximum that is composed: the larger of
two composed directions would be too small in general.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tacit.privacy.gaussian_pair import GaussianPair
from tacit.privacy.loss_points import ROUNDING, PointLoss, Points


@dataclass(frozen=True)
class SubsetPair:
    """The pair of distributions whose trade-off function is C_rate(G_{1/sigma}).

    Above ε = 0 the larger δ is that of (1−q)·N(0, σ²) + q·N(1, σ²) against N(0, σ²), below it
    that of the opposite direction; what is left of either member's mass has loss zero.
    """

    sigma: float
    rate: float

    @property
    def directions(self) -> tuple[GaussianPair, GaussianPair]:
        """The record is present only in the first dataset's sample, or only in the second's."""
        return GaussianPair(self.sigma, self.rate, 0.0), GaussianPair(self.sigma, 0.0, self.rate)

    def span(self, tail: float) -> tuple[float, float]:
        above, below = self.directions
        return min(below.span(tail)[0], 0.0), max(above.span(tail)[1], 0.0)

    def variance(self) -> float:
        return max(pair.variance() for pair in self.directions)

    def on_points(self, points: Points, tail: float) -> PointLoss:
        """Positive losses of one direction, negative ones of the other, the rest at zero."""
        above, below = (pair.on_points(points, tail) for pair in self.directions)
        zero = int(np.searchsorted(above.index, 0))
        mass = np.concatenate((below.mass[:zero], [0.0], above.mass[zero + 1 :]))
        mass[zero] = max(1.0 - math.fsum(mass) - above.infinite, 0.0) + 4 * ROUNDING
        return PointLoss(above.index, mass, above.infinite, max(above.slack, below.slack))
