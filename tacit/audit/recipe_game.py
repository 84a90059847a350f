"""Games about one recipe, and what comes of those that train it whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tacit.audit.protocol import Played, claimed_epsilon
from tacit.audit.scores import Scores
from tacit.config import Recipe
from tacit.privacy import events, ledger
from tacit.privacy.relations import Relation
from tacit.rundir import RunDir


@dataclass(frozen=True)
class RecipeGame:
    """A game about a recipe; subclasses add its sizes, as whole numbers, and how it is played."""

    name: ClassVar[str]
    recipe: Recipe

    @property
    def delta(self) -> float:
        """The recipe's own."""
        return self.recipe.privacy.delta

    def digest(self) -> str:
        """Names everything that decides the game but the seed."""
        sizes = (str(value) for value in vars(self).values() if isinstance(value, int))
        return " ".join((self.recipe.digest(), *sizes))


def outcome(run: Path, scores: Scores, relation: Relation) -> Played:
    """The scores of a finished run, with what its ledger says it was charged for."""
    entries = ledger.read(RunDir(run).ledger)
    return Played(
        scores,
        events.counted(events.leaves(ledger.spent(entries))),
        relation,
        independent=False,
        claimed=claimed_epsilon(entries[0].body, relation),
    )
