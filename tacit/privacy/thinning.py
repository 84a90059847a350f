"""What a trial costs whose outcome is a candidate or nothing.

A candidate w is accepted with probability a(w), which lies below a known M. For any `coin` above
M, accepting with probability a is a toss of a coin that falls heads with probability `coin`,
whatever the data, followed by acceptance with probability a/coin. Whoever sees the toss sees more,
so a trial costs at most that of a release and a bit in a fraction `coin` of cases, and nothing in
the others. Proof: docs/proofs/selective.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from tacit.errors import ArgumentError, NoProofError
from tacit.privacy import rdp
from tacit.privacy.relations import Relation

Array = NDArray[np.float64]

_CELLS_PER_SHIFT = 32
_MOST_CELLS = 512


@dataclass(frozen=True)
class AcceptanceTest:
    """Accepts with probability Φ(s), s a function of a Poisson sample and of the candidate.

    Guarantee: s lies in [`low`, `high`], and one record in the sample moves it by at most `shift`;
    records are in the sample independently with probability `rate`.
    """

    rate: float
    low: float
    high: float
    shift: float

    def __post_init__(self) -> None:
        if not (self.low <= self.high and self.shift > 0 and 0 < self.rate <= 1):
            raise ArgumentError(
                f"an acceptance test at rate {self.rate:g} between {self.low:g} and {self.high:g},"
                f" moved by {self.shift:g}, is none"
            )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> AcceptanceTest:
        """The test that `as_json` wrote."""
        match data:
            case {
                "poisson": float() | int() as rate,
                "quantiles": [float() | int() as low, float() | int() as high],
                "moved-by": float() | int() as shift,
            }:
                return cls(float(rate), float(low), float(high), float(shift))
        raise NoProofError(f"{data!r} is not a test this version knows; refusing to account for it")

    def as_json(self) -> dict[str, Any]:
        """Plain values for the ledger."""
        values = {"poisson": self.rate, "quantiles": [self.low, self.high]}
        return {**values, "moved-by": self.shift}

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest probability of acceptance.

        >>> test = AcceptanceTest(0.004, -2.5 / 2.74, -0.5 / 2.74, 1 / 1.37)
        >>> [round(bound, 6) for bound in test.bounds]
        [0.180777, 0.427602]
        """
        return float(ndtr(self.low)), float(ndtr(self.high))

    def bits(self, coin: float, relation: Relation) -> tuple[tuple[float, float], ...]:
        """Corners (x, y) of what heads can lead to: acceptance with the record, and without it.

        Given the other records of the sample, s without the record lies in some cell and s with it
        within `shift` of that cell. Averages over the others stay in the hull of these corners,
        and divergences are quasi-convex, so the corners are the worst.
        """
        most = self.bounds[1]
        if not most < coin <= 1:
            raise ArgumentError(
                f"a_star is {coin:g}; it must lie above the largest probability of acceptance,"
                f" {most:.6g}, and at most at 1"
            )
        return _corners(self, coin, relation)


@lru_cache(maxsize=1024)
def _corners(
    test: AcceptanceTest, coin: float, relation: Relation
) -> tuple[tuple[float, float], ...]:
    width = test.high - test.low
    cells = 1
    if test.shift < width:
        cells = min(_MOST_CELLS, math.ceil(_CELLS_PER_SHIFT * width / test.shift))
    edges = np.linspace(test.low, test.high, cells + 1)
    without = ndtr(np.stack((edges[:-1], edges[1:])))
    reach = np.stack((edges[:-1] - test.shift, edges[1:] + test.shift))
    present = ndtr(np.clip(reach, test.low, test.high))
    replaced = relation in (Relation.REPLACE_ONE, Relation.REPLACE_FEATURES)
    found: set[tuple[float, float]] = set()
    for base, one, other in product((0, 1), (0, 1), (0, 1) if replaced else (None,)):
        x = (1 - test.rate) * without[base] + test.rate * present[one]
        y = without[base]
        if other is not None:
            y = (1 - test.rate) * without[base] + test.rate * present[other]
        found |= set(zip((x / coin).tolist(), (y / coin).tolist(), strict=True))
    return tuple(sorted((x, y) for x, y in found if x != y))


def bit_divergences(points: Sequence[tuple[float, float]], orders: Sequence[float]) -> Array:
    """For each order, the largest Rényi divergence of Bernoulli(x), Bernoulli(y), either way."""
    alphas = np.asarray(orders, dtype=np.float64)[:, None]
    if not points:
        return np.zeros(len(alphas))
    x, y = np.array(points).T
    both = [_bernoulli(alphas, first, second) for first, second in ((x, y), (y, x))]
    return np.asarray(np.maximum(*both).max(axis=1))


def _bernoulli(alphas: Array, x: Array, y: Array) -> Array:
    """ln(1 + y·(e^(α ln(x/y)) − 1) + (1−y)·(…))/(α−1), which keeps the digits of small values."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        up, down = np.log1p((x - y) / y), np.log1p((y - x) / (1 - y))
        moment = y * np.expm1(alphas * up) + (1 - y) * np.expm1(alphas * down)
    moment = np.where(np.isnan(moment), np.inf, np.maximum(moment, 0.0))
    return np.asarray(np.log1p(moment) / (alphas - 1))


def trial_divergences(
    release: Array, test: AcceptanceTest, coin: float, orders: Sequence[float]
) -> Array:
    """Rényi divergences of a trial, from those of its release, under add-or-remove-one.

    Guarantee: at least the divergence between trials on neighbours, in both directions, for every
    candidate distribution with these divergences and every acceptance function of the test.
    """
    points = test.bits(coin, Relation.ADD_OR_REMOVE_ONE)
    return rdp.or_nothing(coin, release + bit_divergences(points, orders), orders)
