"""A small search of clip norm and learning rate on held-out records, equal for every contestant.

What a clip norm means differs from rule to rule, so no grid would treat them alike. Instead each
recipe climbs from a start of its own: it tries the neighbours of the best point so far, and goes
on from there. A neighbour has another rate, or another clip norm at the same product of both,
which is how far a clipped gradient moves the weights. What comes next follows from what is stored,
so an interrupted search goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from accuracy_suite import stored
from accuracy_suite.stored import Summary, recipe_of, summaries
from tacit import config
from tacit.method_sections import ClippedRecipe

PAGE = "trials/batch-clipping-search"
HELD_OUT = 5000
_FACTOR = 10**0.25
_MOVES = tuple(
    move for size in (2, 1) for move in ((0, size), (0, -size), (size, -size), (-size, size))
)
"""First by √10, then by its root: rate up, rate down, clip up, clip down."""

Point = tuple[int, int]
"""Clip norm and rate, as powers of the factor by which they differ from the start."""


@dataclass(frozen=True)
class Start:
    """Where a search begins."""

    clip: float
    rate: float

    def at(self, point: Point) -> tuple[float, float]:
        """Clip norm and rate of a point, to three digits."""
        clip, rate = self.clip * _FACTOR ** point[0], self.rate * _FACTOR ** point[1]
        return float(f"{clip:.3g}"), float(f"{rate:.3g}")


_RULES = {"flat": 1.0, "adaptive": 1.0, "grouped": 1.0, "multiplied": 3.0}
"""Start of the clip norm by rule. Multiplied gradients have √L times the norm of the largest layer
(the paper's own remark on B.2), and there are five to nine layers."""
STARTS = {
    **{f"003/equal-mnist-individual-{rule}": Start(by, 0.5) for rule, by in _RULES.items()},
    "003/equal-mnist-individual-multiplied-grouped": Start(2.0, 0.5),
    **{f"003/equal-mnist-batch-{rule}": Start(0.2 * by, 0.025) for rule, by in _RULES.items()},
    "003/equal-cifar-individual-flat": Start(1.0, 1.0),
    "003/equal-cifar-individual-grouped": Start(1.0, 1.0),
    "003/equal-cifar-individual-multiplied": Start(3.0, 1.0),
    "003/equal-cifar-individual-multiplied-grouped": Start(2.0, 1.0),
    "003/equal-cifar-batch-flat-bn": Start(0.14, 0.025),
    "003/equal-cifar-batch-adaptive-bn": Start(0.14, 0.025),
    "003/equal-cifar-batch-adaptive": Start(0.14, 0.025),
}


def trial_of(recipe: str, clip: float, rate: float) -> str:
    """The name under which a trial is trained and stored; `tuned_on` would change its digest."""
    changes = {
        "data.holdout": HELD_OUT,
        "privacy.tuned_on": "trial",
        "method.clip": clip,
        "training.learning_rate": rate,
    }
    return " ".join([recipe, *(f"--set {key}={value}" for key, value in changes.items())])


def settings_of(recipe: str) -> tuple[float, float]:
    """Clip norm and rate that a recipe has today."""
    values = recipe_of(recipe)
    assert isinstance(values.method, ClippedRecipe)
    return values.method.clip, values.training.learning_rate


def next_point(found: Mapping[Point, float]) -> Point | None:
    """The next trial, given the accuracy of those before; None where every neighbour is known."""
    if not found:
        return 0, 0
    best = best_point(found)
    around = [(best[0] + clip, best[1] + rate) for clip, rate in _MOVES]
    return next((point for point in around if point not in found), None)


def best_point(found: Mapping[Point, float]) -> Point:
    """The point with the best accuracy; of equal ones the one nearest to the start."""
    return max(found, key=lambda p: (found[p], -abs(p[0]) - abs(p[1]), p))


def trials() -> dict[str, Summary]:
    """All that was tried."""
    return summaries(stored.stored(PAGE))


@dataclass(frozen=True)
class Search:
    """One recipe's search as far as it is stored."""

    recipe: str
    trials: Mapping[str, Summary]

    @property
    def found(self) -> dict[Point, float]:
        """The accuracies of the trials that were made, walked through again from the start."""
        return self._walked()[0]

    @property
    def adopted_accuracy(self) -> float | None:
        """The held-out accuracy of the settings that the recipe has today."""
        trial = self.trials.get(trial_of(self.recipe, *settings_of(self.recipe)))
        return trial.accuracy if trial and trial.current else None

    def wanted(self, trials: int) -> str | None:
        """The name of the next trial; None where so many were made."""
        found, point = self._walked()
        if point is None or len(found) >= trials:
            return None
        return trial_of(self.recipe, *STARTS[self.recipe].at(point))

    @property
    def best(self) -> tuple[float, float]:
        """Clip norm and rate of the best trial."""
        return STARTS[self.recipe].at(best_point(self.found))

    def _walked(self) -> tuple[dict[Point, float], Point | None]:
        found: dict[Point, float] = {}
        while (point := next_point(found)) is not None:
            trial = self.trials.get(trial_of(self.recipe, *STARTS[self.recipe].at(point)))
            if trial is None or not trial.current:
                break
            found[point] = trial.accuracy
        return found, point


def adopted(search: Search) -> dict[str, Any]:
    """The recipe's values with the best clip norm and rate, and what they were tried on."""
    values = config.read(search.recipe)
    values["method"]["clip"], values["training"]["learning_rate"] = search.best
    data = str(values["data"]["name"]).upper()
    values["privacy"]["tuned_on"] = (
        f"{len(search.found)} settings of clip norm and learning rate were tried on {HELD_OUT:,}"
        f" records held out of the same training set, without a charge; {data} is public data"
    )
    config.from_values(values)
    return values


def write(recipe: str, values: Mapping[str, Any], folder: Path) -> None:
    """Put a recipe's values in its file."""
    (folder / f"{recipe}.toml").write_text(tomli_w.dumps(values), "utf-8")
