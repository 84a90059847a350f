"""A bit whose probability is known within bounds, and a release together with such a bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.privacy.loss_points import Array, Pair, PointLoss, Points, moved


@dataclass(frozen=True)
class CoinPair:
    """Dominates Bernoulli(x) against Bernoulli(y) for every (x, y) in the hull of `points`.

    Its testing region is the convex hull of theirs, so the pair is discrete.
    """

    points: tuple[tuple[float, float], ...]

    @property
    def atoms(self) -> tuple[Array, Array]:
        """Masses under the first and the second member; not those the second member lacks."""
        corners = {(0.0, 0.0), (1.0, 1.0)}
        for x, y in self.points:
            corners |= {(y, x), (1 - y, 1 - x)}
        hull = _upper_hull(sorted(corners))
        other, mass = np.diff(hull, axis=0)[::-1].T
        kept = (mass > 0) & (other > 0)
        return mass[kept], other[kept]

    @property
    def infinite(self) -> float:
        """Mass of the first member where the second has none."""
        return max(
            [
                0.0,
                *(x for x, y in self.points if y == 0),
                *(1 - x for x, y in self.points if y == 1),
            ]
        )

    @property
    def losses(self) -> Array:
        """The loss of each atom."""
        mass, other = self.atoms
        return np.log(mass / other)


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

    def on_points(self, points: Points, tail: float) -> PointLoss:
        """The bit's losses on the finest grid, each added to those of the release."""
        release = self.release.on_points(points, tail)
        atoms, _ = self.bit.atoms
        ends = np.floor(self.bit.losses / points.step).astype(np.int64)
        shifts = np.arange(ends.min(), ends.max() + 2)
        weights, _ = moved(self.bit.losses, atoms, shifts, points.step)
        mass, infinite = np.zeros(len(release.mass)), release.infinite
        for shift in np.flatnonzero(weights):
            losses = (release.index + shifts[shift]) * points.step
            here, beyond = moved(losses, weights[shift] * release.mass, release.index, points.step)
            mass += here
            infinite += beyond
        return PointLoss(release.index, mass, infinite + self.bit.infinite, release.slack)
