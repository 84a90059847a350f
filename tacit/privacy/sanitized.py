"""What noised activations cost, and plans for the methods that release them.

The noise of a released vector is given in units of C√k: C the threshold of its elements, k the
number of them that are kept (in units of C where whole vectors are clipped to a ball). Proof:
docs/proofs/sanitization.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from dp_accounting import DpEvent, NonPrivateDpEvent, NoOpDpEvent

from tacit.errors import ArgumentError, NoProofError
from tacit.privacy import accountants, claims, events
from tacit.privacy.plan import up_to_digits
from tacit.privacy.relations import Relation

Guarantee = Literal["paper", "one-time", "joint", "class-sums"]
Range = Literal["positive", "symmetric", "ball"]
"""Elements lie in [0, C] or in [−C, C], or the whole vector in a ball of radius C."""
Mask = Literal["exact", "bernoulli"]
"""Dropout keeps exactly k elements of each vector, or each element by a coin of its own."""

_LARGEST_NOISE = 1e6

NO_GUARANTEE = (
    "the gradients of the layers below the sanitization layer are products with raw activations"
    " (a batch of one record gives it back), and one noised vector per record shows who took part,"
    " so that sampling hides nobody"
)


@dataclass(frozen=True)
class Sanitizer:
    """The noise on one vector of `width` elements, each clipped to C.

    Guarantee: `release(rate)` is what one such vector per record costs, where records take part by
    public coins. In [0, C] a vector moves by at most C√k, in [−C, C] by twice that, and in a ball
    by twice its radius.
    """

    width: int
    noise: float
    range: Range = "positive"
    dropout: float = 0.0
    mask: Mask = "exact"

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ArgumentError(f"width is {self.width}; the layer must have at least one element")
        if not 0 <= self.dropout < 1:
            raise ArgumentError(f"dropout is {self.dropout}; it must lie in [0, 1)")
        if self.range == "ball" and self.mask == "bernoulli" and self.dropout:
            raise NoProofError("mask is 'bernoulli', which needs elements clipped one by one")

    @property
    def counted(self) -> bool:
        """Whether the number of elements that are kept is fixed, so that samples can be charged."""
        return self.mask == "exact" or self.dropout == 0

    @property
    def kept(self) -> float:
        """Elements of a vector that are released; with Bernoulli masks their expected number."""
        kept = self.width * (1 - self.dropout)
        return kept if self.mask == "bernoulli" else max(1, round(kept))

    def deviation(self, clip: float) -> float:
        """Standard deviation of the noise on each element."""
        return clip * self.noise * (1.0 if self.range == "ball" else math.sqrt(self.kept))

    def release(self, rate: float = 1.0) -> DpEvent:
        """One noised vector of each record that takes part."""
        moved = 1.0 if self.range == "positive" else 2.0
        if self.counted:
            return events.visible(rate, events.bounded_gaussian(self.noise / moved))
        if rate != 1.0:
            raise NoProofError(
                "mask is 'bernoulli', which is accounted for in a release of all records only; use"
                " mask 'exact'"
            )
        each = events.bounded_gaussian(self.noise * math.sqrt(self.kept) / moved)
        return events.repeated(events.visible(1 - self.dropout, each), self.width)


@dataclass(frozen=True)
class SanitizedSchedule:
    """The steps of a run, what each releases, and what that costs.

    `noise` is that of the released vectors, of the released sums (in units of how far a record can
    move them), or with guarantee "joint" that of the gradients, in units of their clip.
    """

    guarantee: Guarantee
    records: int
    batch_size: float
    steps: int
    noise: float
    sanitizer: Sanitizer
    activation_noise: float = 0.0
    """Noise of the vectors under "joint"; 0 chooses one that costs about as much as gradients."""

    def __post_init__(self) -> None:
        if self.guarantee == "class-sums" and self.sanitizer.range != "ball":
            raise ArgumentError(
                f"range is {self.sanitizer.range!r}; class sums are of vectors in a 'ball'"
            )
        if self.guarantee == "class-sums" and self.sanitizer.dropout:
            raise ArgumentError(
                f"dropout is {self.sanitizer.dropout!r}, which has a use only with vectors, not"
                " with sums over classes; leave it out"
            )
        if not (self.noise > 0 and math.isfinite(self.noise)):
            raise ArgumentError(f"noise is {self.noise}; it must be a positive finite number")
        if not 0 <= self.activation_noise < math.inf:
            raise ArgumentError(
                f"activation_noise is {self.activation_noise}; it must be a positive finite number,"
                " or 0 for one that costs about as much as the gradients"
            )

    @property
    def probability(self) -> float:
        """The rate at which each record is sampled for a step."""
        return events.sampling_probability(self.records, self.batch_size)

    @property
    def epochs(self) -> float:
        """Expected passes over the data."""
        return self.steps * self.batch_size / self.records

    @property
    def vectors(self) -> Sanitizer:
        """The noise on the vectors that are released."""
        noise = self.noise
        if self.guarantee == "joint":
            noise = self.activation_noise or self.noise / (2 * math.sqrt(self.probability))
        return replace(self.sanitizer, noise=noise)

    def charge(self, step: int) -> DpEvent:
        """What step `step` releases; later steps of "one-time" only post-process."""
        if self.guarantee == "paper":
            return NonPrivateDpEvent()
        if self.guarantee == "joint":
            gradients = events.poisson(self.probability, events.gaussian(self.noise))
            return events.composed([gradients, self.vectors.release(self.probability)])
        if step > 0:
            return NoOpDpEvent()
        if self.guarantee == "class-sums":
            return events.visible(1.0, events.bounded_gaussian(self.noise))
        return self.vectors.release()

    def event(self) -> DpEvent:
        """What the whole run releases."""
        repeats = self.steps if self.guarantee in ("paper", "joint") else 1
        return events.repeated(self.charge(0), repeats)

    def proven(self, delta: float, relation: Relation = Relation.REPLACE_FEATURES) -> float:
        """ε of the whole run; infinite for the paper's algorithm."""
        return accountants.epsilon(self.event(), delta, relation)

    def head_only(self, delta: float, relation: Relation = Relation.REPLACE_FEATURES) -> float:
        """ε of the noised vectors of all steps alone, as if the encoder had not been trained."""
        vectors = events.repeated(self.vectors.release(self.probability), self.steps)
        return accountants.epsilon(vectors, delta, relation)

    def claimed(self, delta: float) -> claims.Claim | None:
        """What the paper says of its own algorithm; it has no claim for the others."""
        if self.guarantee != "paper":
            return None
        return claimed_after(self, self.steps, delta)


def usual_range(guarantee: Guarantee) -> Range:
    """Where values lie unless it is said."""
    return "ball" if guarantee == "class-sums" else "positive"


def noise_for(
    schedule: SanitizedSchedule,
    epsilon: float,
    delta: float,
    relation: Relation = Relation.REPLACE_FEATURES,
) -> SanitizedSchedule:
    """The schedule with the least noise whose ε is at most `epsilon`; for the paper's algorithm,
    which has no proven ε, its claimed one."""
    if not 0 < epsilon < math.inf:
        raise ArgumentError(f"epsilon is {epsilon}; it must be a positive finite number")
    _check_vectors_alone(schedule, epsilon, delta, relation)
    if schedule.guarantee == "paper":
        return _least(schedule, epsilon, lambda s: claimed_after(s, s.steps, delta).epsilon)
    return _least(schedule, epsilon, lambda s: s.proven(delta, relation))


def claimed_after(schedule: SanitizedSchedule, steps: int, delta: float) -> claims.Claim:
    """What the paper says its algorithm has spent after so many steps."""
    return claims.sanitization(schedule.probability, schedule.noise, steps, delta)


def _check_vectors_alone(
    schedule: SanitizedSchedule, epsilon: float, delta: float, relation: Relation
) -> None:
    """No noise on gradients makes up for vectors that cost too much by themselves."""
    if schedule.guarantee != "joint" or not schedule.activation_noise:
        return
    alone = schedule.head_only(delta, relation)
    if alone >= epsilon:
        raise ArgumentError(
            f"activation_noise is {schedule.activation_noise}: the noised vectors alone cost ε ="
            f" {alone:.6g}, and epsilon is {epsilon}; raise activation_noise, or set it to 0 for"
            " one that fits"
        )


def _least(
    schedule: SanitizedSchedule, epsilon: float, cost: Callable[[SanitizedSchedule], float]
) -> SanitizedSchedule:
    def fits(noise: float) -> bool:
        return cost(replace(schedule, noise=noise)) <= epsilon

    high = 1.0
    while not fits(high):
        high *= 2
        if high > _LARGEST_NOISE:
            raise ArgumentError(f"epsilon is {epsilon}; even noise {high:g} does not reach it")
    low = high / 2
    while low > 1e-3 and fits(low):
        low, high = low / 2, low
    while high / low > 1 + 2e-6:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return replace(schedule, noise=up_to_digits(high, 6))
