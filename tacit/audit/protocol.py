"""What every attack has in common: a mechanism, neighbouring data, a statistic.

A game runs the mechanism on data that hang on fair coins: heads and tails of one coin give
neighbouring datasets. Its statistic makes one score of each coin. What follows from scores and
coins is the same for all games; see `tacit.audit.verdict`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from dp_accounting import DpEvent

from tacit.audit.scores import Scores
from tacit.privacy.claims import Claim
from tacit.privacy.relations import Relation

Progress = Callable[[int, int], None]
"""Told how many of how many steps are done."""


@dataclass(frozen=True)
class Played:
    """One run of a game.

    `event` is everything the run was charged for, and `relation` what one coin changes.
    `independent` says that for a mechanism that keeps its promise the scores are independent.
    """

    scores: Scores
    event: DpEvent
    relation: Relation
    independent: bool
    claimed: float | None = None
    noise_may_be_wrong: bool = True
    """Whether a smaller noise than promised is what the scores would show, if anything."""
    by_record: Scores | None = None
    """Scores of single records, where a coin is about two of them: for the ROC curve."""


def claimed_epsilon(promise: dict[str, Any], relation: Relation) -> float | None:
    """What the paper claims by the first entry of a ledger, if an attack under this relation can
    refute it."""
    said = promise["claimed"]
    if not said or "relation" not in said:
        return None
    claim = Claim(said["epsilon"], said["source"], relation=Relation(said["relation"]))
    return claim.epsilon if claim.speaks_of(relation) else None


class Game(Protocol):
    """An attack that can be played again and again, each time with new coins."""

    @property
    def name(self) -> str:
        """What it is called in reports."""
        ...

    @property
    def delta(self) -> float:
        """The δ at which ε is bounded."""
        ...

    def digest(self) -> str:
        """Names everything but the seed that decides what comes of a run."""
        ...

    def play(self, seed: int, progress: Progress) -> Played:
        """One run; the seed decides its coins and its noise."""
        ...
