"""Plans between DP-SGD and DP-FTRL: banded noise on Poisson samples from groups that take turns.

With b groups and a factor of b bands, two uses of a record lie b steps apart and fall into
disjoint rows of the factor, so each round of b steps is one Poisson-sampled Gaussian release
(Choquette-Choo et al. 2023). One group is DP-SGD; as many groups as batches is DP-FTRL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dp_accounting import DpEvent, NoOpDpEvent

from tacit.errors import ArgumentError
from tacit.privacy import accountants, events, factors
from tacit.privacy.plan import Question, solve
from tacit.privacy.relations import Relation


@dataclass(frozen=True)
class GroupedSchedule:
    """Steps on Poisson samples of one group after the other, with banded noise.

    `noise` is in units of the norm of a column of the factor, so that a round costs what a step of
    DP-SGD with this multiplier and the rate within a group costs.
    """

    records: int
    batch_size: float
    steps: int
    noise: float
    bands: int

    def __post_init__(self) -> None:
        if self.bands < 1:
            raise ArgumentError(f"bands is {self.bands}; there must be at least one group")
        if self.bands * self.batch_size > self.records:
            raise ArgumentError(
                f"bands is {self.bands}: a group of {self.records / self.bands:g} records cannot"
                f" yield {self.batch_size:g} on average; use fewer bands or a smaller batch"
            )

    @property
    def probability(self) -> float:
        """The rate at which a record is sampled when it is its group's turn."""
        return events.sampling_probability(self.records, self.bands * self.batch_size)

    @property
    def epochs(self) -> float:
        """Expected passes over the data."""
        return self.steps * self.batch_size / self.records

    @property
    def rounds(self) -> int:
        """How often a record may be sampled."""
        return -(-self.steps // self.bands)

    @property
    def column_norm(self) -> float:
        """Norm of a column of the factor whose first coefficient is one, rounded up."""
        squared = float((factors.square_root_coefficients(self.bands) ** 2).sum())
        return math.sqrt(squared) * (1 + 1e-6 if self.bands > 1 else 1)

    def prefix_noise(self) -> float:
        """Root mean square of the noise in the prefix sums, per unit of noise."""
        coefficients = factors.square_root_coefficients(self.bands)
        variances = factors.banded_variances(coefficients, self.steps)
        return self.column_norm * factors.rms(variances)

    def round_event(self) -> DpEvent:
        """What one round releases; groups go by a record's place, which is fixed in advance."""
        return events.fixed_order(events.poisson(self.probability, events.gaussian(self.noise)))

    def charge(self, step: int) -> DpEvent:
        """The first step of a round pays for all of it."""
        return NoOpDpEvent() if step % self.bands else self.round_event()

    def claimed(self, delta: float) -> None:
        """No paper of ours makes a claim for it."""
        return None

    def event(self) -> DpEvent:
        """What the whole schedule releases."""
        return events.repeated(self.round_event(), self.rounds)

    def proven(self, delta: float, relation: Relation = Relation.ZERO_OUT) -> float:
        """ε of the whole schedule."""
        return accountants.epsilon(self.event(), delta, relation)


def noise_for(
    schedule: GroupedSchedule, epsilon: float, delta: float, relation: Relation
) -> GroupedSchedule:
    """The schedule with the least noise whose ε is at most `epsilon`."""
    sampled = solve(
        Question(
            delta=delta,
            epsilon=epsilon,
            steps=schedule.rounds,
            batch_size=schedule.bands * schedule.batch_size,
            records=schedule.records,
            relation=relation,
        )
    )
    return replace(schedule, noise=sampled.noise)


def best_bands(
    schedule: GroupedSchedule, epsilon: float, delta: float, relation: Relation
) -> GroupedSchedule:
    """The bands, and the noise that goes with them, that leave the least noise in the sums."""
    most = min(schedule.steps, int(schedule.records // schedule.batch_size))
    tried = sorted({max(1, round(most ** (i / 8))) for i in range(9)})
    solved = [
        noise_for(replace(schedule, bands=bands), epsilon, delta, relation) for bands in tried
    ]
    return min(solved, key=lambda s: s.noise * s.prefix_noise())
