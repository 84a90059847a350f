"""Membership inference as an attack: a target, shadow models, and a score from their outputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tacit.audit.models import Model, PoolOf
from tacit.audit.pool import by_pair, is_member
from tacit.audit.protocol import Played
from tacit.audit.scores import Scores
from tacit.audit.signals import SCORES, Shadows
from tacit.sweep import Task

DEFAULT_SHADOWS = 8


@dataclass(frozen=True)
class Membership:
    """One way to score, against the first `targets` models; the rest are its shadow models.

    Shadow models are never targets, so what is guessed of a target's coins depends on the target
    and on coins that are independent of them.
    """

    name: str
    pool: PoolOf
    cache: Path
    targets: int = 1
    shadows: int = DEFAULT_SHADOWS
    on_training_records: bool = True

    @property
    def delta(self) -> float:
        return self.pool.recipe.privacy.delta

    def _models(self) -> list[Model]:
        count = self.targets + (self.shadows if self.name != "loss-threshold" else 0)
        return [Model(self.pool, number, self.cache) for number in range(count)]

    def tasks(self) -> list[Task]:
        return list(self._models())

    def played(self) -> list[Played]:
        shown = [model.shown() for model in self._models()]
        others = shown[self.targets :]
        shadows = Shadows(
            tuple(one.signals for one in others), tuple(is_member(one.heads) for one in others)
        )
        return [
            Played(
                Scores(by_pair(scored), one.heads),
                one.event,
                self.pool.relation,
                independent=False,
                claimed=one.claimed,
                by_record=Scores(scored, is_member(one.heads)),
            )
            for one in shown[: self.targets]
            for scored in [SCORES[self.name](one.signals, shadows)]
        ]
