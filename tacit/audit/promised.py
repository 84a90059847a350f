"""What a run's events promise against every attack: ε, the trade-off curve, less or more noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from tacit.privacy import accountants, events
from tacit.privacy.relations import Relation

Array = NDArray[np.float64]
_DELTAS = np.concatenate((np.geomspace(1e-9, 0.1, 60), np.linspace(0.12, 0.98, 44)))


@dataclass(frozen=True)
class Promised:
    """The guarantee of `event` for neighbours under `relation`."""

    event: DpEvent
    relation: Relation

    def epsilon(self, delta: float) -> float:
        """ε at this δ, never below the true one."""
        return accountants.epsilon(self.event, delta, self.relation)

    @cached_property
    def _lines(self) -> tuple[Array, Array]:
        """(ε, δ) at many δ; each bounds every attack by a straight line."""
        found = [(self.epsilon(float(delta)), float(delta)) for delta in _DELTAS]
        pairs = np.array([pair for pair in found if np.isfinite(pair[0])] or [(700.0, 1.0)])
        return np.minimum(pairs[:, 0], 700.0), pairs[:, 1]

    def allowed(self, false_positives: Array) -> Array:
        """The highest true positive rate of any attack at each rate of false positives."""
        epsilon, delta = self._lines
        rates = np.asarray(false_positives, dtype=np.float64)[:, None]
        growth = np.exp(epsilon)
        steep = growth * rates + delta
        flat = 1 - (1 - delta - rates) / growth
        return np.asarray(np.minimum(1.0, np.minimum(steep, flat).min(axis=1)))

    def highest_auc(self) -> float:
        """The largest area under a ROC curve that the promise allows."""
        rates = np.concatenate(([0.0], np.geomspace(1e-9, 1.0, 2000)))
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
