"""A budget for trials whose noise follows earlier results: one Rényi order, fixed in advance.

Where the cost of a later step depends on what earlier steps released, numerical composition has no
proof. An RDP filter has: as long as divergences of one order, fixed before the first step, never
add up to more than a limit, everything together has at most that divergence (Feldman and Zrnic
2021). A step that would exceed it is not taken.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

from dp_accounting import DpEvent

from tacit.errors import ArgumentError
from tacit.privacy import elementary, events, rdp
from tacit.privacy.relations import Relation
from tacit.privacy.selective import SelectiveSchedule, best_coin_at

_ORDERS = (1.5, *(float(order) for order in range(2, 65)), 80.0, 96.0, 128.0, 256.0)
_ROUNDING = 1e-12


@dataclass(frozen=True)
class RdpFilter:
    """Admits events while their divergences of `order` stay within `limit`."""

    order: float
    limit: float
    _known: dict[int, tuple[DpEvent, float]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def for_budget(cls, start: SelectiveSchedule, epsilon: float, delta: float) -> RdpFilter:
        """The filter within ε whose order allows the most trials like `start`."""
        limits = {order: rdp.divergence_for(order, epsilon, delta) for order in _ORDERS}
        possible = {order: limit for order, limit in limits.items() if limit > 0}
        if not possible:
            raise ArgumentError(
                f"epsilon is {epsilon:g}; at delta {delta:g} it allows nothing at all. Ask for a"
                " larger epsilon, or a larger delta"
            )
        best = max(possible, key=lambda order: possible[order] / cost(start, order))
        if possible[best] < cost(start, best):
            raise ArgumentError(
                f"epsilon is {epsilon:g}; a single trial with noise {start.noise:g} already costs"
                " more. Use more noise or smaller batches"
            )
        return cls(best, possible[best])

    @classmethod
    def for_trials(cls, start: SelectiveSchedule, delta: float) -> RdpFilter:
        """The filter for as many trials as `start` has, if its noise stayed as it is."""
        limits = {order: start.steps * cost(start, order) for order in _ORDERS}
        best = min(limits, key=lambda order: rdp.epsilon_at(order, limits[order], delta))
        return cls(best, limits[best] * (1 + 2 * _ROUNDING))

    def trial(self, schedule: SelectiveSchedule) -> DpEvent:
        """A trial with these settings, by the accounting that is cheaper at the filter's order."""
        return events.adaptive(_cheaper(schedule, self.order).trial_event(), self.order)

    def event(self) -> DpEvent:
        """All that the filter can let through."""
        return events.filtered(self.order, self.limit)

    def admits(self, spent: Counter[DpEvent], event: DpEvent) -> bool:
        """Whether `event` fits on top of what was spent."""
        costs = [times * self._divergence(each) for each, times in spent.items()]
        total = math.fsum([*costs, elementary.divergence(event, self.order)])
        return total <= self.limit * (1 - _ROUNDING)

    def _divergence(self, event: DpEvent) -> float:
        """What it costs, found by the object, which is kept: all are asked for at every trial."""
        known = self._known.get(id(event))
        if known is None:
            known = self._known[id(event)] = event, elementary.divergence(event, self.order)
        return known[1]

    def trials(self, start: SelectiveSchedule) -> int:
        """How many trials like `start` fit."""
        return int(self.limit * (1 - _ROUNDING) / cost(start, self.order))


def check_relation(relation: Relation) -> None:
    """Refuse a relation under which noise that follows earlier results has no proof."""
    if relation not in (Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT):
        raise ArgumentError(
            f"relation is {relation.value}: noise that follows earlier results has no proof under"
            " it; use add-or-remove-one, or noise that does not decay"
        )


def cost(schedule: SelectiveSchedule, order: float) -> float:
    """Divergence of one trial."""
    return elementary.divergence(_cheaper(schedule, order).trial_event(), order)


def _cheaper(schedule: SelectiveSchedule, order: float) -> SelectiveSchedule:
    plain = replace(schedule, coin=None, steps=1)
    if plain.compares or plain.acceptance.bounds[1] > 0.999:
        return plain
    thinned = replace(plain, coin=best_coin_at(plain, order))
    return min(plain, thinned, key=lambda s: elementary.divergence(s.trial_event(), order))
