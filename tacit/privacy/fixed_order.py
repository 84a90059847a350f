"""Plans without sampling: batches in an order fixed in advance, noise correlated over the steps.

What a run releases is one Gaussian mechanism over all its steps. Its cost after t steps is that of
N(0, 1) against N(√S(t)/σ, 1), where S(t) is the squared sensitivity so far (participation.py), so
each step is charged for what it adds to S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from dp_accounting import DpEvent, NoOpDpEvent

from tacit.errors import ArgumentError, NoProofError
from tacit.privacy import accountants, claims, events, factors, participation
from tacit.privacy.plan import up_to_digits
from tacit.privacy.relations import Relation

Mechanism = Literal["tree", "banded"]
BatchOrder = Literal["same", "reshuffled"]
_TIGHT = 1e-6
_LARGEST_EPSILON = 1e5


@dataclass(frozen=True)
class Correlation:
    """How noise is shared between steps; `bands` of 0 are chosen to leave the least noise."""

    mechanism: Mechanism = "tree"
    restart_every: int = 0
    completion: bool = False
    reduced: bool = True
    order: BatchOrder = "same"
    bands: int = 0

    def __post_init__(self) -> None:
        if self.restart_every < 0:
            raise ArgumentError(
                f"restart_every is {self.restart_every}; give whole epochs, or 0 for one tree"
            )
        if self.bands < 0:
            raise ArgumentError(f"bands is {self.bands}; give a whole number, or 0 to choose")
        if self.mechanism == "banded" and (self.restart_every or self.completion):
            raise ArgumentError("restart_every and completion are for mechanism 'tree' only")
        if self.mechanism == "tree" and self.bands:
            raise ArgumentError(f"bands is {self.bands}; it is for mechanism 'banded' only")
        if self.completion and not self.restart_every:
            raise ArgumentError("completion fills up a tree before a restart: give restart_every")
        if self.mechanism == "banded" and self.order == "reshuffled":
            raise NoProofError(
                "a banded factor's sensitivity holds for a fixed order only: two uses of a record"
                " must lie an epoch apart, which reshuffling breaks. Use order 'same', or mechanism"
                " 'tree', which is accounted for at the worst order"
            )


@dataclass(frozen=True)
class FixedOrderSchedule:
    """Steps over batches in a fixed order, with correlated Gaussian noise: what DP-FTRL promises.

    `noise` is the standard deviation of one draw (a tree node, or one entry of z) in units of the
    largest norm of a record's contribution.
    """

    records: int
    batch_size: int
    steps: int
    noise: float
    correlation: Correlation = Correlation()

    @property
    def batches(self) -> int:
        """Batches in an epoch; the last one may be short."""
        return -(-self.records // self.batch_size)

    @property
    def epochs(self) -> float:
        """Passes over the data."""
        return self.steps / self.batches

    @property
    def bands(self) -> int:
        """Bands of the factor, chosen where none are given."""
        chosen = self.correlation.bands
        if self.correlation.mechanism == "tree":
            return 0
        return chosen or best_bands(self.batches, self.steps)

    def growth(self) -> participation.Series:
        """Squared sensitivity after each step, for the worst record."""
        return _growth(self.batches, self.steps, self.correlation, self.bands)

    @property
    def sensitivity_squared(self) -> float:
        """Squared sensitivity of the whole run."""
        return float(self.growth()[-1])

    def prefix_noise(self) -> float:
        """Root mean square of the noise in the prefix sums, per unit of noise."""
        return _prefix_noise(self.batches, self.steps, self.correlation, self.bands)

    def charge(self, step: int) -> DpEvent:
        """What a step adds to what the steps before it released."""
        growth = self.growth()
        added = float(growth[step] - (growth[step - 1] if step else 0.0))
        return self._release(added) if added > 0 else NoOpDpEvent()

    def event(self) -> DpEvent:
        """What the whole schedule releases."""
        return self._release(self.sensitivity_squared)

    def _release(self, squared: float) -> DpEvent:
        """The Gaussian mechanism at this squared sensitivity, made larger against rounding."""
        return events.fixed_order(events.gaussian(self.noise / math.sqrt(squared * (1 + _TIGHT))))

    def proven(self, delta: float, relation: Relation = Relation.ZERO_OUT) -> float:
        """ε of the whole schedule, exactly that of the Gaussian mechanism."""
        return accountants.epsilon(self.event(), delta, relation)

    def claimed(self, delta: float) -> claims.Claim | None:
        """What paper 002 would say of it; the paper knows the tree only."""
        if self.correlation.mechanism != "tree":
            return None
        return claims.dpftrl(self.sensitivity_squared, self.noise, delta)


def noise_for(
    schedule: FixedOrderSchedule, epsilon: float, delta: float, relation: Relation
) -> FixedOrderSchedule:
    """The schedule with the least noise whose ε is at most `epsilon`."""
    from scipy.optimize import brentq

    if not 0 < epsilon <= _LARGEST_EPSILON:
        raise ArgumentError(
            f"epsilon is {epsilon}; it must lie above 0 and at most at {_LARGEST_EPSILON:g}"
        )

    def excess(log_noise: float) -> float:
        cost = replace(schedule, noise=math.exp(log_noise)).proven(delta, relation)
        return min(cost, 1e6) - epsilon

    noise = up_to_digits(math.exp(float(brentq(excess, -6.0, 25.0, xtol=1e-12))), 6)
    while replace(schedule, noise=noise).proven(delta, relation) > epsilon * (1 - 1e-9):
        noise = up_to_digits(noise * (1 + 1e-6), 6)
    return replace(schedule, noise=noise)


def epochs_for(
    schedule: FixedOrderSchedule, epsilon: float, delta: float, relation: Relation
) -> FixedOrderSchedule:
    """The schedule with the most whole epochs whose ε is at most `epsilon`."""

    def cost(epochs: int) -> float:
        return replace(schedule, steps=epochs * schedule.batches).proven(delta, relation)

    if cost(1) > epsilon:
        raise ArgumentError(
            f"epsilon is {epsilon:g}; a single epoch with noise {schedule.noise:g} already costs"
            f" {up_to_digits(cost(1), 5)}. Use more noise"
        )
    good, bad = 1, 2
    while cost(bad) <= epsilon:
        good, bad = bad, 2 * bad
        if bad * schedule.batches > 1_000_000:
            raise ArgumentError(f"noise {schedule.noise:g} allows more than a million steps")
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if cost(middle) <= epsilon else (good, middle)
    return replace(schedule, steps=good * schedule.batches)


@lru_cache(maxsize=64)
def best_bands(batches: int, steps: int) -> int:
    """The bands for `batches` in the same order every epoch; see `bands_for`."""
    return bands_for(participation.same_order(batches, steps))


def bands_for(order: participation.Order) -> int:
    """The number of bands that leaves the least noise in the prefix sums at equal privacy.

    For any order of batches, one's own included. At most the separation of two uses of a record:
    up to there a band more costs nothing but the growth of a single column.

    >>> bands_for([[0, 1, 2, 3]] * 3)
    4
    """
    steps = sum(map(len, order))
    most = participation.separation(order)
    tried = sorted({max(1, round(most ** (i / 12))) for i in range(13)} | {most})

    def noise(bands: int) -> float:
        coefficients = factors.square_root_coefficients(bands)
        squared = float(participation.banded_growth(order, coefficients)[-1])
        return math.sqrt(squared) * factors.rms(factors.banded_variances(coefficients, steps))

    return min(tried, key=noise)


@lru_cache(maxsize=256)
def _growth(batches: int, steps: int, correlation: Correlation, bands: int) -> participation.Series:
    if steps < 1:
        raise ArgumentError(f"steps is {steps}; there must be at least one")
    restart, completion = correlation.restart_every, correlation.completion
    if correlation.order == "reshuffled":
        worst = participation.tree_worst_case(batches, steps, restart, completion)
        return np.full(steps, worst)
    order = participation.same_order(batches, steps)
    if correlation.mechanism == "tree":
        return participation.tree_growth(order, restart, completion)
    return participation.banded_growth(order, factors.square_root_coefficients(bands))


@lru_cache(maxsize=256)
def _prefix_noise(batches: int, steps: int, correlation: Correlation, bands: int) -> float:
    if correlation.mechanism == "banded":
        return factors.rms(factors.banded_variances(factors.square_root_coefficients(bands), steps))
    each = correlation.restart_every * batches or steps
    leaves = [min(each, steps - start) for start in range(0, steps, each)]
    return factors.rms(
        factors.tree_variances(
            leaves, reduced=correlation.reduced, completion=correlation.completion
        )
    )
