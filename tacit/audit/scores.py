"""What an attack saw: scores with the coins they are about, their ROC curve and its figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtri
from scipy.stats import beta, rankdata

from tacit.errors import ArgumentError

Array = NDArray[np.float64]
Coins = NDArray[np.bool_]
SHOWN_FALSE_POSITIVES = (0.001, 0.01)


@dataclass(frozen=True)
class Interval:
    """An estimate with the range that covers the truth at a given confidence."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Scores:
    """One score for each coin; a high one speaks for heads (the record took part).

    >>> took_part = np.array([False, True, True, False])
    >>> Scores(np.array([0.1, 0.9, 0.8, 0.2]), took_part).auc(0.95).estimate
    1.0
    """

    values: Array
    heads: Coins

    def __post_init__(self) -> None:
        if self.values.shape != self.heads.shape or self.values.ndim != 1:
            raise ArgumentError(
                f"scores have shape {self.values.shape}, coins {self.heads.shape}; give one score"
                " for each coin"
            )
        if np.isnan(self.values).any():
            raise ArgumentError("some scores are not numbers; the attack did not work")

    @classmethod
    def together(cls, parts: Sequence[Scores]) -> Scores:
        """The scores of several runs as one."""
        return cls(
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.heads for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.values)

    def halves(self) -> tuple[Scores, Scores]:
        """Every other coin, and the rest: one half to choose by, the other to conclude from."""
        return (
            Scores(self.values[::2], self.heads[::2]),
            Scores(self.values[1::2], self.heads[1::2]),
        )

    @cached_property
    def members(self) -> Array:
        """Scores of heads, ascending."""
        return np.sort(self.values[self.heads])

    @cached_property
    def others(self) -> Array:
        """Scores of tails, ascending."""
        return np.sort(self.values[~self.heads])

    def positives(self, thresholds: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How many heads, and how many tails, score at least each threshold."""
        true = len(self.members) - np.searchsorted(self.members, thresholds, "left")
        false = len(self.others) - np.searchsorted(self.others, thresholds, "left")
        return true, false

    def roc(self, points: int = 400) -> tuple[Array, Array]:
        """False and true positive rates from (0, 0) to (1, 1), at about `points` places.

        Small rates of false positives get as many places as large ones.
        """
        self._need(1)
        count = len(self.others)
        allowed = np.unique(np.geomspace(1, count + 1, points).astype(np.int64)) - 1
        true, false = self.positives(self._thresholds(allowed))
        return (
            np.concatenate(([0.0], false / count, [1.0])),
            np.concatenate(([0.0], true / len(self.members), [1.0])),
        )

    def _thresholds(self, false_positives: NDArray[np.int64]) -> Array:
        """The lowest thresholds that let so many tails pass."""
        highest = np.concatenate((self.others[::-1], [-np.inf]))
        return np.asarray(np.nextafter(highest[false_positives], np.inf))

    def _need(self, each: int) -> None:
        if min(len(self.members), len(self.others)) < each:
            raise ArgumentError(
                f"there are {len(self.members)} heads and {len(self.others)} tails; at least"
                f" {each} of each kind are needed: play more coins"
            )

    def auc(self, confidence: float) -> Interval:
        """Area under the ROC curve; ties count half.

        The interval is DeLong's, on the log-odds scale, for scores that are independent. Where
        the two kinds are separated entirely it comes from comparing disjoint pairs instead.
        """
        self._need(2)
        ones, zeros = len(self.members), len(self.others)
        everyone = rankdata(np.concatenate((self.members, self.others)))
        above = (everyone[:ones] - rankdata(self.members)) / zeros
        below = 1 - (everyone[ones:] - rankdata(self.others)) / ones
        area = float(above.mean())
        variance = float(above.var(ddof=1) / ones + below.var(ddof=1) / zeros)
        if variance == 0:
            pairs = min(ones, zeros)
            won = round(area * pairs)
            return Interval(area, *proportion(won, pairs, confidence))
        reach = float(ndtri((1 + confidence) / 2)) * math.sqrt(variance) / (area * (1 - area))
        low, high = expit(logit(area) - reach), expit(logit(area) + reach)
        return Interval(area, float(low), float(high))

    def true_positives_at(self, false_positives: float, confidence: float) -> Interval:
        """True positive rate at the lowest threshold with at most this rate of false positives."""
        self._need(1)
        allowed = math.floor(false_positives * len(self.others) + 1e-9)
        true, _ = self.positives(self._thresholds(np.array([allowed])))
        found, all_of_them = int(true[0]), len(self.members)
        return Interval(found / all_of_them, *proportion(found, all_of_them, confidence))


def proportion(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Clopper and Pearson's two-sided interval for a proportion."""
    error = (1 - confidence) / 2
    return below(successes, trials, error), above(successes, trials, error)


def below(successes: int, trials: int, error: float) -> float:
    """A proportion that the true one is below with probability at most `error`."""
    return float(beta.ppf(error, successes, trials - successes + 1)) if successes > 0 else 0.0


def above(successes: int, trials: int, error: float) -> float:
    """A proportion that the true one exceeds with probability at most `error`."""
    rest = trials - successes
    return float(beta.ppf(1 - error, successes + 1, rest)) if rest > 0 else 1.0
