"""The dominating pair of a Gaussian release of a record that is sampled, or not."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from tacit.privacy.loss_points import ROUNDING, Array, PointLoss, Points, cells, losses_at

_RULE = np.polynomial.legendre.leggauss(5)
_SHORT_RULE = np.polynomial.legendre.leggauss(3)
_RESOLUTION, _SHORT_RESOLUTION = 0.4, 0.025
_QUADRATURE = 4e-14
_MOVED = 1e-11


@dataclass(frozen=True)
class GaussianPair:
    """(1−p)·N(0, σ²) + p·N(1, σ²) against (1−q)·N(0, σ²) + q·N(−1, σ²).

    p = rate, q = 0 is the removal of a record that is sampled at that rate, p = 0, q = rate its
    addition, p = q = rate its replacement; rate 1 is the Gaussian mechanism without sampling.
    The loss increases with the output.
    """

    sigma: float
    p: float
    q: float

    def output_at(self, loss: Array) -> Array:
        """The output whose loss is given: a quadratic in exp(x/σ²), solved without cancellation."""
        log_c = -0.5 / self.sigma**2
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if self.p == self.q == 0:
                log_u = np.where(loss < 0, -np.inf, np.inf)
            elif self.q == 0:
                log_u = _log_of_excess(loss, self.p) - math.log(self.p) - log_c
            elif self.p == 0:
                log_u = math.log(self.q) + log_c - _log_of_excess(-loss, self.q)
            else:
                log_u = self._log_u_of_both(loss, log_c)
        return np.asarray(self.sigma**2 * log_u)

    def _log_u_of_both(self, loss: Array, log_c: float) -> Array:
        """For u: p/c·u² + (1 − p − e^loss·(1 − q))·u − e^loss·q·c = 0, divided by e^(loss/2)."""
        half = np.exp(loss / 2)
        linear = self.q * half - self.p / half - 2 * np.sinh(loss / 2)
        root = np.sqrt(linear**2 + 4 * self.p * self.q * math.exp(2 * log_c))
        found: Array = np.where(
            linear > 0,
            loss / 2 + math.log(2 * self.q) + log_c - np.log(linear + root),
            loss / 2 + np.log(root - linear) - math.log(2 * self.p) - log_c,
        )
        return found

    def loss_at(self, output: Array) -> tuple[Array, Array]:
        """ln of the ratio of the two densities, never too small, and ln of the first over φ."""
        above = (2 * output - 1) / (2 * self.sigma**2)
        below = (-2 * output - 1) / (2 * self.sigma**2)
        top, bottom = _log_mix(self.p, above), _log_mix(self.q, below)
        error = (np.abs(top) * (1 + np.abs(above)) + np.abs(bottom) * (1 + np.abs(below))) * (
            8 * ROUNDING
        )
        return top - bottom + error, top

    def span(self, tail: float) -> tuple[float, float]:
        """A range of losses outside which the first member has at most `tail` on either side."""
        ends, _ = self.loss_at(np.array(self._reach(tail)) * self.sigma)
        return float(ends[0]), float(ends[1])

    def _reach(self, tail: float) -> tuple[float, float]:
        """Standard deviations below and above zero outside which the first member has at most
        `tail` each: half of it from either normal law."""
        low = high = _quantile(tail / 2)
        if self.p > 0:
            high = max(high, 1 / self.sigma + _quantile(tail / (2 * self.p)))
        return -low, high

    def variance(self) -> float:
        """Variance of the loss, to choose a grid; no bound rests on it."""
        edges = np.linspace(-12 * self.sigma, 12 * self.sigma + 1, 401)
        loss, mass = self._nodes(edges[:-1], edges[1:], _SHORT_RULE)
        mean = float(np.sum(mass * loss))
        return float(np.sum(mass * (loss - mean) ** 2))

    def _nodes(self, start: Array, end: Array, rule: tuple[Array, Array]) -> tuple[Array, Array]:
        """Losses and masses at the nodes of a Gauss rule in each interval of outputs."""
        nodes, weights = rule
        half = (end - start)[:, None] / 2
        output = (((start + end) / 2)[:, None] + half * nodes).ravel()
        loss, log_ratio = self.loss_at(output)
        density = np.exp(log_ratio - (output / self.sigma) ** 2 / 2)
        width = (half * weights).ravel() / (self.sigma * math.sqrt(2 * math.pi))
        return loss, density * width

    def on_points(self, points: Points, tail: float) -> PointLoss:
        """The loss on `points`, both members keeping their mass.

        Integrals over intervals between two points are taken by Gauss's rule on parts so short
        that its relative error stays below 4e-14, and below 1e-11 for what moves to the upper
        point; rounding is bounded by `slack`.
        """
        index, ends = points.index, losses_at(points.index, points.step)
        low, high = self._reach(tail)
        steepest = -low if self._is_flat(low, high) else max(-low, 1 / self.sigma)
        steps = math.ceil((high - low) * steepest / _RESOLUTION)
        inner = np.clip(self.output_at(ends), low * self.sigma, high * self.sigma)
        fixed = np.linspace(low, high, steps + 1) * self.sigma
        edges = np.sort(np.concatenate((inner, fixed)))
        short = np.diff(edges) * steepest < _SHORT_RESOLUTION * self.sigma
        parts = [
            self._nodes(edges[:-1][chosen], edges[1:][chosen], rule)
            for chosen, rule in ((short, _SHORT_RULE), (~short, _RULE))
        ]
        loss, mass = (np.concatenate(each) for each in zip(*parts, strict=True))
        cell, part = cells(loss, ends)
        below, above = cell < 0, cell == len(index) - 1
        held = np.clip(cell, 0, len(index) - 1)
        right = mass * np.minimum(part * (1 + _MOVED), 1.0)
        right[below | above] = 0.0
        found = np.zeros(len(index))
        np.add.at(found, held, (mass - right) * ~above)
        np.add.at(found, np.minimum(held + 1, len(index) - 1), right)
        left_over, right_over = self._outside(low, high)
        lowest = self.loss_at(np.array([low * self.sigma]))[0]
        found[min(int(np.searchsorted(ends, lowest)[0]), len(index) - 1)] += left_over
        infinite = float(mass[above].sum()) + right_over
        slack = 2 * _QUADRATURE + 8 * ROUNDING * (high**2 + 1)
        return PointLoss(index, found, infinite, slack)

    def _is_flat(self, low: float, high: float) -> bool:
        """Whether the loss is the same from `low` to `high` standard deviations, to the last bit:
        the addition of a record that noise so small would show."""
        ends = np.array([low, high]) * self.sigma
        below = _log_mix(self.q, (-2 * ends - 1) / (2 * self.sigma**2))
        return self.p == 0 and bool(below[0] == below[1])

    def _outside(self, low: float, high: float) -> tuple[float, float]:
        """Mass of the first member below and above this many standard deviations."""
        moved = 1 / self.sigma
        left = (1 - self.p) * ndtr(low) + self.p * ndtr(low - moved)
        right = (1 - self.p) * ndtr(-high) + self.p * ndtr(moved - high)
        return float(left), float(right)


def _quantile(tail: float) -> float:
    """A number that a normal variable exceeds with at most this probability."""
    return math.sqrt(-2 * math.log(tail)) if tail < 0.5 else 0.0


def _log_mix(rate: float, exponent: Array) -> Array:
    """ln(1 − rate + rate·e^exponent), with the digits of small values."""
    if rate == 0:
        return np.zeros_like(exponent)
    if rate == 1:
        return exponent
    large = exponent > -math.log(rate)
    found = np.log1p(rate * np.expm1(np.where(large, 0.0, exponent)))
    if large.any():
        far = exponent[large]
        found[large] = far + np.log(rate + (1 - rate) * np.exp(-far))
    return found


def _log_of_excess(loss: Array, rate: float) -> Array:
    """ln(e^loss − 1 + rate); −∞ where that is not positive."""
    near = np.log(np.maximum(np.expm1(np.clip(loss, -1.0, 1.0)) + rate, 0.0))
    far = loss + np.log1p(-np.minimum((1 - rate) * np.exp(-loss), 1.0))
    return np.where(np.abs(loss) < 1, near, far)
