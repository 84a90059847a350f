"""Plans of selective updates: trials whose candidates a noisy test accepts or rejects.

Every trial is charged before its outcome is known, one way or the other: *charge all* pays for
the gradient and for the test's noisy value; *thinning* pays for a candidate or nothing, and covers
what is computed from accepted candidates alone. Proofs: docs/proofs/selective.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from dp_accounting import DpEvent

from tacit.errors import ArgumentError, NoProofError
from tacit.privacy import accountants, claims, elementary, events, rdp
from tacit.privacy.accountants import Accountant
from tacit.privacy.plan import largest, up_to_digits
from tacit.privacy.relations import Relation
from tacit.privacy.thinning import AcceptanceTest

Statistic = Literal["clipped-mean", "clipped-sum"]
LARGEST_BUFFER = 4
"""Accepted candidates that may wait for a choice: as many as paper 001 tries."""
_MOST_TRIALS = 10**6


@dataclass(frozen=True)
class LossTest:
    """Accepts a candidate whose noisy change of loss lies below β times half of its range.

    "clipped-mean": the sample's mean change clipped to ±C, which one record can move by 2C.
    "clipped-sum": each record's change clipped to ±C, which one record can move by C, and the sum
    clipped to ±`reach` times its noise. `noise` is in units of how far one record moves it.
    """

    batch_size: float
    noise: float
    beta: float = -1.5
    statistic: Statistic = "clipped-mean"
    reach: float = 1.5

    def __post_init__(self) -> None:
        for name, value in (("validation_noise", self.noise), ("reach", self.reach)):
            if not (value > 0 and math.isfinite(value)):
                raise ArgumentError(f"{name} is {value}; it must be a positive finite number")
        if not math.isfinite(self.beta):
            raise ArgumentError(f"beta is {self.beta}; it must be a finite number")

    @property
    def half_range(self) -> float:
        """Half of what the statistic can span, in units of its noise."""
        return 0.5 / self.noise if self.statistic == "clipped-mean" else self.reach

    def acceptance(self, rate: float) -> AcceptanceTest:
        """The test as its acceptance probabilities."""
        half = self.half_range
        return AcceptanceTest(rate, (self.beta - 1) * half, (self.beta + 1) * half, 1 / self.noise)


@dataclass(frozen=True)
class SelectiveSchedule:
    """Trials of equal noise. With `coin` they are charged by thinning, without it all in full.

    `compares` says that noisy changes of loss are looked at again after the test, to choose among
    accepted candidates: thinning does not cover that.
    """

    records: int
    batch_size: float
    steps: int
    noise: float
    test: LossTest
    compares: bool = False
    coin: float | None = None

    def __post_init__(self) -> None:
        if self.compares and self.coin is not None:
            raise NoProofError(
                "noisy losses are compared again after the test, which thinning does not cover:"
                " charge every trial, or average the candidates or choose among them by lot"
            )

    @property
    def probability(self) -> float:
        """The rate at which each record is sampled for a gradient."""
        return events.sampling_probability(self.records, self.batch_size)

    @property
    def test_probability(self) -> float:
        """The rate at which each record is sampled for a test."""
        size = self.test.batch_size
        return events.sampling_probability(self.records, size, "validation_batch_size")

    @property
    def epochs(self) -> float:
        """Expected passes over the data, those for tests not counted."""
        return self.steps * self.batch_size / self.records

    @property
    def acceptance(self) -> AcceptanceTest:
        """The test with the rate of its sample."""
        return self.test.acceptance(self.test_probability)

    def trial_event(self) -> DpEvent:
        """What one trial releases."""
        gradient = events.poisson(self.probability, events.gaussian(self.noise))
        if self.coin is not None:
            return events.thinned(gradient, self.acceptance, self.coin)
        value = events.poisson(self.test_probability, events.gaussian(self.test.noise))
        return events.composed((gradient, value))

    def charge(self, step: int) -> DpEvent:
        """What a trial releases; the same for each."""
        return self.trial_event()

    def event(self) -> DpEvent:
        """What all trials release together."""
        return events.repeated(self.trial_event(), self.steps)

    def proven(
        self,
        delta: float,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
        accountant: Accountant = Accountant.PLD,
    ) -> float:
        """ε of all trials; how many were accepted does not enter."""
        return accountants.epsilon(self.event(), delta, relation, accountant)

    def update_divergences(self) -> rdp.Array:
        """What paper 001 charges for one applied update."""
        return claims.selective_update(
            self.probability, self.noise, self.test_probability, self.test.noise
        )

    def claimed(self, delta: float, accepted: int | None = None) -> claims.Claim | None:
        """What paper 001 would say if so many updates had been applied."""
        if accepted is None:
            return None
        return claims.selective(accepted * self.update_divergences(), delta)

    def thinned(self, delta: float) -> SelectiveSchedule | None:
        """The same trials charged by thinning with the best coin; None where it does not cover."""
        if self.compares or self.acceptance.bounds[1] > 0.999:
            return None
        return replace(self, coin=_best_coin(replace(self, coin=None), delta))

    def cheapest(self, delta: float) -> SelectiveSchedule:
        """The same trials with whichever accounting covers them at the smaller ε."""
        thinned, all_charged = self.thinned(delta), replace(self, coin=None)
        if thinned is not None and thinned.proven(delta) < all_charged.proven(delta):
            return thinned
        return all_charged


@lru_cache(maxsize=256)
def _best_coin(schedule: SelectiveSchedule, delta: float) -> float:
    return _minimised(schedule, lambda thinned: thinned.proven(delta, accountant=Accountant.RDP))


@lru_cache(maxsize=4096)
def best_coin_at(schedule: SelectiveSchedule, order: float) -> float:
    """The coin that minimises one trial's divergence at this order."""
    return _minimised(schedule, lambda thinned: elementary.divergence(thinned.trial_event(), order))


def _minimised(schedule: SelectiveSchedule, cost: Callable[[SelectiveSchedule], float]) -> float:
    from scipy.optimize import minimize_scalar

    most = schedule.acceptance.bounds[1]
    start = up_to_digits(most + 1e-3 * (1 - most), 6)
    found = minimize_scalar(
        lambda coin: cost(replace(schedule, coin=coin)),
        bounds=(start, 1.0),
        method="bounded",
        options={"xatol": 1e-4},
    )
    return min(1.0, max(start, round(float(found.x), 4)))


def trials_for(
    schedule: SelectiveSchedule, epsilon: float, delta: float, relation: Relation
) -> SelectiveSchedule:
    """The schedule with the most trials whose ε is at most `epsilon`."""

    def of(trials: int) -> SelectiveSchedule:
        return replace(schedule, steps=trials, coin=None).cheapest(delta)

    best = largest(1, _MOST_TRIALS, lambda n: of(n).proven(delta, relation) <= epsilon)
    if best is None:
        raise ArgumentError(
            f"epsilon is {epsilon:g}; a single trial with noise {schedule.noise:g} already costs"
            " more. Use more noise or smaller batches"
        )
    if best == _MOST_TRIALS:
        raise ArgumentError(
            f"epsilon is {epsilon:g}; noise {schedule.noise:g} allows more than {_MOST_TRIALS:,}"
            " trials. Use less noise or a smaller epsilon"
        )
    return of(best)


def noise_for(
    schedule: SelectiveSchedule, epsilon: float, delta: float, relation: Relation
) -> SelectiveSchedule:
    """The schedule with the least gradient noise whose ε is at most `epsilon`."""

    def of(noise: float) -> SelectiveSchedule:
        return replace(schedule, noise=noise, coin=None).cheapest(delta)

    def fits(noise: float) -> bool:
        return of(noise).proven(delta, relation) <= epsilon

    low, high = 0.3, 1e3
    if not fits(high):
        raise ArgumentError(
            f"epsilon is {epsilon:g}; the tests alone cost more. Use more validation noise, smaller"
            " validation batches or fewer epochs"
        )
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    noise = up_to_digits(high, 6)
    while not fits(noise):
        noise = up_to_digits(noise * (1 + 1e-5), 6)
    return of(noise)
