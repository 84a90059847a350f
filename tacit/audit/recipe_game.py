"""Games that train a recipe whole and look at what it released."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tacit.audit.protocol import Played, claimed_epsilon
from tacit.audit.scores import Scores
from tacit.config import Recipe
from tacit.privacy import events, ledger
from tacit.privacy.relations import Relation
from tacit.rundir import RunDir


@dataclass(frozen=True)
class RecipeGame:
    """The recipe, and how many canaries it meets; subclasses say what they are."""

    recipe: Recipe
    canaries: int
    data_dir: Path | None = None

    @property
    def delta(self) -> float:
        """The recipe's own."""
        return self.recipe.privacy.delta

    def digest(self) -> str:
        """Names everything that decides the game but the seed."""
        return f"{self.recipe.digest()} {self.canaries}"


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
