"""A bit whose probability is known within bounds, and a release together with such a bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.pld import GridLoss, Pair

Array = NDArray[np.float64]

_ROUNDING = 2.0**-52


@dataclass(frozen=True)
class CoinPair:
    """Dominates Bernoulli(x) against Bernoulli(y) for every (x, y) in the hull of `points`.

    Its testing region is the convex hull of theirs, so the pair is discrete.
    """

    points: tuple[tuple[float, float], ...]

    @property
    def atoms(self) -> tuple[Array, Array]:
        """Masses under the first and the second member; lost to rounding what is below 1e-16."""
        corners = {(0.0, 0.0), (1.0, 1.0)}
        for x, y in self.points:
            corners |= {(y, x), (1 - y, 1 - x)}
        hull = _upper_hull(sorted(corners))
        other, mass = np.diff(hull, axis=0)[::-1].T
        kept = (mass > 0) & (other > 0)
        return mass[kept], other[kept]

    @property
    def losses(self) -> Array:
        """The loss of each atom."""
        mass, other = self.atoms
        return np.log(mass / other)

    def on_grid(self, step: float) -> GridLoss:
        """The loss on multiples of `step`, both members keeping their mass."""
        mass, other = self.atoms
        cells = np.floor(self.losses / step).astype(np.int64)
        first, size = int(cells.min()), int(np.ptp(cells)) + 1
        sums = np.zeros((size, 2))
        np.add.at(sums, cells - first, np.stack((mass, other), axis=1))
        here, losses = sums[:, 0], (first + np.arange(size)) * step
        to_right = (here - sums[:, 1] * np.exp(losses)) / -math.expm1(-step)
        to_right = np.clip(to_right + here * (8 * _ROUNDING / step), 0.0, here)
        left_out = max(0.0, 1.0 - float(mass.sum()))
        return GridLoss(first, np.append(here - to_right, 0.0) + np.append(0.0, to_right), left_out)


def _upper_hull(points: Sequence[tuple[float, float]]) -> Array:
    """The least concave curve above the points, which are sorted."""
    hull: list[tuple[float, float]] = []
    for x, y in points:
        while len(hull) > 1 and (hull[-1][0] - hull[-2][0]) * (y - hull[-2][1]) >= (
            hull[-1][1] - hull[-2][1]
        ) * (x - hull[-2][0]):
            hull.pop()
        hull.append((x, y))
    return np.array(hull)


@dataclass(frozen=True)
class Both:
    """A release and then a bit."""

    release: Pair
    bit: CoinPair

    def span(self, tail: float) -> tuple[float, float]:
        """The release's, widened by the bit's."""
        low, high = self.release.span(tail)
        losses = self.bit.losses
        return low + float(losses.min()), high + float(losses.max())

    def variance(self) -> float:
        """Variance of the loss, the bit's a little too large; no bound rests on it."""
        return self.release.variance() + float(self.bit.atoms[0] @ self.bit.losses**2)

    def on_grid(self, step: float, tail: float) -> GridLoss:
        """Both losses added, bit by bit of the few that there are."""
        release, bit = self.release.on_grid(step, tail), self.bit.on_grid(step)
        mass = np.zeros(len(release.mass) + len(bit.mass) - 1)
        for shift in np.flatnonzero(bit.mass):
            mass[shift : shift + len(release.mass)] += bit.mass[shift] * release.mass
        return GridLoss(release.first + bit.first, mass, release.infinite + bit.infinite)
