"""What a run's events promise against every attack: ε, the trade-off curve, less or more noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from tacit.privacy import accountants, events, tradeoff
from tacit.privacy.relations import Relation
from tacit.privacy.tradeoff import TradeOff

Array = NDArray[np.float64]
_OUT_OR_IN = Relation.ADD_OR_REMOVE_ONE
_SMALLEST_DELTA = 1e-14


@dataclass(frozen=True)
class Promised:
    """The guarantee of `event` for neighbours under `relation`."""

    event: DpEvent
    relation: Relation

    def epsilon(self, delta: float) -> float:
        """ε at this δ, never below the true one; infinite where no proof covers the relation."""
        if accountants.covers(self.event, self.relation):
            return accountants.epsilon(self.event, delta, self.relation)
        return self._by_two_steps(delta)

    def _by_two_steps(self, delta: float) -> float:
        """A replaced record is one taken out and one put in: (2ε, (1 + e^ε)·δ)."""
        if not self._two_steps:
            return math.inf

        def once(inner: float) -> float:
            return accountants.epsilon(self.event, inner, _OUT_OR_IN)

        def fits(inner: float) -> bool:
            return (1 + math.exp(min(once(inner), 700.0))) * inner <= delta

        low, high = _SMALLEST_DELTA, delta
        if not fits(low):
            return math.inf
        for _ in range(40):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if fits(middle) else (low, middle)
        return 2 * once(low)

    @property
    def _two_steps(self) -> bool:
        replaced = self.relation in (Relation.REPLACE_ONE, Relation.REPLACE_FEATURES)
        return replaced and accountants.covers(self.event, _OUT_OR_IN)

    @cached_property
    def _curve(self) -> TradeOff:
        return tradeoff.of(self.event, self.relation)

    def allowed(self, false_positives: Array) -> Array:
        """The highest true positive rate of any attack at each rate of false positives.

        One where no curve is proven under the relation, though there may be an ε.
        """
        if not accountants.covers(self.event, self.relation) or np.isinf(self.epsilon(0.5)):
            return np.ones_like(false_positives)
        return np.asarray(1.0 - self._curve.misses(false_positives))

    def highest_auc(self) -> float:
        """The largest area under a ROC curve that the promise allows."""
        rates = np.concatenate(([0.0], np.geomspace(1e-9, 1.0, 500)))
        heights = self.allowed(rates)
        return float(np.sum(np.diff(rates) * heights[1:]))

    def with_noise(self, factor: float) -> Promised:
        """The same mechanism with this multiple of its noise."""
        louder = events.from_json(_louder(events.to_json(self.event), factor))
        return Promised(louder, self.relation)


def _louder(value: Any, factor: float) -> Any:
    """An event's JSON with the multiplier of every Gaussian scaled."""
    if isinstance(value, list):
        return [_louder(part, factor) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        key: inner * factor
        if key.endswith("gaussian") and isinstance(inner, int | float)
        else _louder(inner, factor)
        for key, inner in value.items()
    }
