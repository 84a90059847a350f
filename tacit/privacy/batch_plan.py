"""Plans of batch clipping: rounds of k mini-sets of s records, each clipped as a whole.

Wherever a record is, it moves the sum of clipped mini-sets by at most 2C, and noise is counted in
units of that. What a round costs is then a matter of how its records are drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from dp_accounting import DpEvent, NoOpDpEvent

from tacit.errors import ArgumentError
from tacit.privacy import accountants, claims, events
from tacit.privacy.plan import MOST_STEPS, largest, least_noise
from tacit.privacy.relations import Relation

Sampling = Literal["subset", "partition", "once-per-epoch"]


@dataclass(frozen=True)
class BatchSchedule:
    """Rounds on mini-sets, with noise N(0, (2C·noise)²): what batch clipping promises.

    `noise` is the multiplier of the whole release; with L groups of layers of equal shares each
    group's own multiplier is √L times that.

    - subset: every round draws a fresh uniform subset of the records and cuts it into mini-sets;
    - partition: mini-sets are fixed before training, every round draws some of them uniformly;
    - once-per-epoch: all mini-sets of a fixed partition in turn; nothing is amplified.

    After the last round `moments` layers' statistics of all records may be released, each with
    noise of multiplier `moments_noise`, in one more step.
    """

    records: int
    batch_size: int
    epochs: float
    noise: float
    sampling: Sampling = "subset"
    mini_sets: int = 1
    moments: int = 0
    moments_noise: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= self.records:
            raise ArgumentError(
                f"batch_size is {self.batch_size}; it must lie between 1 and the number of"
                f" records, {self.records}"
            )
        if self.mini_sets < 1 or self.batch_size % self.mini_sets:
            raise ArgumentError(
                f"mini_sets is {self.mini_sets}; a batch of {self.batch_size} is cut into equal"
                " mini-sets: choose a divisor, 1 for batch clipping"
            )
        if not (self.epochs > 0 and math.isfinite(self.epochs)):
            raise ArgumentError(f"epochs is {self.epochs}; it must be a positive number")

    @property
    def set_size(self) -> int:
        """Records in a mini-set."""
        return self.batch_size // self.mini_sets

    @property
    def sets(self) -> int:
        """Mini-sets of a partition; the last one may be short."""
        return -(-self.records // self.set_size)

    @property
    def rounds_per_epoch(self) -> int:
        """Rounds in which a partition is gone through."""
        return -(-self.sets // self.mini_sets)

    @property
    def steps(self) -> int:
        """Rounds of the whole run."""
        if self.sampling == "once-per-epoch":
            return math.ceil(self.epochs * self.rounds_per_epoch - 1e-9)
        return math.ceil(self.epochs * self.records / self.batch_size - 1e-9)

    @property
    def probability(self) -> float:
        """How likely a record takes part in a round."""
        if self.sampling == "subset":
            return self.batch_size / self.records
        return min(1.0, self.mini_sets / self.sets) if self.sampling == "partition" else 1.0

    def round_event(self) -> DpEvent:
        """What one round releases, or one epoch where every record is used once in it."""
        release = events.bounded_gaussian(self.noise)
        if self.sampling == "subset":
            return events.subset(self.batch_size, self.records, release)
        if self.sampling == "partition":
            release = events.subset(min(self.mini_sets, self.sets), self.sets, release)
        return events.fixed_order(release)

    def charge(self, step: int) -> DpEvent:
        """What a step adds; where no record is used twice in an epoch, its first step pays."""
        if step == self.steps and self.moments:
            return self._moments_event()
        if self.sampling == "once-per-epoch" and step % self.rounds_per_epoch:
            return NoOpDpEvent()
        return self.round_event()

    def event(self) -> DpEvent:
        """What the whole schedule releases."""
        rounds = self.steps
        if self.sampling == "once-per-epoch":
            rounds = -(-self.steps // self.rounds_per_epoch)
        whole = events.repeated(self.round_event(), rounds)
        return events.composed([whole, self._moments_event()]) if self.moments else whole

    def _moments_event(self) -> DpEvent:
        return events.repeated(events.bounded_gaussian(self.moments_noise), self.moments)

    def proven(self, delta: float, relation: Relation = Relation.REPLACE_ONE) -> float:
        """ε of the whole schedule."""
        return accountants.epsilon(self.event(), delta, relation)

    def claimed(self, delta: float) -> claims.Claim | None:
        """What paper 003 would say of it; nothing where its formula is beyond all numbers."""
        return claims.batch_clipping(self.records, self.batch_size, self.epochs, self.noise, delta)


def noise_for(
    schedule: BatchSchedule, epsilon: float, delta: float, relation: Relation
) -> BatchSchedule:
    """The schedule with the least noise whose ε is at most `epsilon`."""

    def cost(noise: float) -> float:
        return replace(schedule, noise=noise).proven(delta, relation)

    return replace(schedule, noise=least_noise(cost, epsilon))


def epochs_for(
    schedule: BatchSchedule, epsilon: float, delta: float, relation: Relation
) -> BatchSchedule:
    """The schedule with the most rounds whose ε is at most `epsilon`."""

    def lasting(steps: int) -> BatchSchedule:
        if schedule.sampling == "once-per-epoch":
            return replace(schedule, epochs=steps / schedule.rounds_per_epoch)
        return replace(schedule, epochs=steps * schedule.batch_size / schedule.records)

    steps = largest(1, MOST_STEPS, lambda n: lasting(n).proven(delta, relation) <= epsilon)
    if steps is None:
        raise ArgumentError(
            f"epsilon is {epsilon:g}; a single round with noise {schedule.noise:g} already exceeds"
            " it. Use more noise"
        )
    return lasting(steps)
