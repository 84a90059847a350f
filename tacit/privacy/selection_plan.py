"""Plans of a private search: the noise of every candidate, so that the best costs at most ε."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dp_accounting import DpEvent

from tacit.errors import ArgumentError
from tacit.privacy import accountants, events
from tacit.privacy.plan import least_noise
from tacit.privacy.relations import Relation
from tacit.privacy.selection import RunCount, best_of

_ATTEMPTS = 30

Run = Callable[[float], DpEvent]
"""What a run releases, by its noise multiplier."""


@dataclass(frozen=True)
class SelectionPlan:
    """Noise for each kind of run, and the event that the whole search is charged as."""

    noises: tuple[float, ...]
    event: DpEvent

    def proven(self, delta: float, relation: Relation) -> float:
        """ε of the whole search."""
        return accountants.epsilon(self.event, delta, relation)


def noises_for(
    runs: Sequence[Run], law: RunCount, epsilon: float, delta: float, relation: Relation
) -> SelectionPlan:
    """The least noise for each kind of run with which the best of them all costs at most ε.

    Every kind gets the noise at which it alone could be tried for the same share of ε; the share
    is lowered until they fit together, as the dearest may be another one at every Rényi order.
    """
    share = epsilon
    for _ in range(_ATTEMPTS):
        noises = tuple(_noise(run, law, share, delta, relation) for run in runs)
        pairs = zip(runs, noises, strict=True)
        plan = SelectionPlan(noises, best_of([run(noise) for run, noise in pairs], law))
        proven = plan.proven(delta, relation)
        if proven <= epsilon:
            return plan
        share *= min(0.999, epsilon / proven)
    raise ArgumentError(f"epsilon is {epsilon:g}; no noise was found for all candidates together")


def _noise(run: Run, law: RunCount, epsilon: float, delta: float, relation: Relation) -> float:
    def cost(noise: float) -> float:
        return accountants.epsilon(best_of([run(noise)], law), delta, relation)

    return least_noise(cost, epsilon)


def scored(run: DpEvent, score_noise: float | None) -> DpEvent:
    """A run together with its score: a count that one record moves by at most 1, with noise."""
    if score_noise is None:
        return run
    return events.composed([run, events.bounded_gaussian(score_noise)])
