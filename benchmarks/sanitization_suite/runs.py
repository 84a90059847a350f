"""The runs behind the figures of paper 000: what is trained, and what is kept of it.

The paper trains on all records for 100 epochs. So do the runs over the epochs. For those over
widths and factors a tenth of the records is used for a few epochs, in the paper's batches of 20;
this gives nearly the claimed ε that the paper prints, and accuracy is on records held out of the
training set: the test set is not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accuracy_suite.stored import RESULTS, recipe_of

from tacit.config import Recipe
from tacit.report.load import load_run

FILE = "sanitization-figures.json"
RECORDS, HELD_OUT = 5_000, 4_000
SHORT, LONG = 4, 8
"""Epochs; where the paper has figures for 50 and 100, the long runs are read at half and at their
end."""
EVERY = 2
WIDTHS = (10, 40, 100)
MIDDLE = 40
FACTORS = (0.02, 0.05, 0.1, 0.2)
FOLLOWED = 0.1
SEED = 0
_TRAINING_RECORDS = {"mnist": 60_000, "cifar-10": 50_000}

Row = dict[str, Any]


@dataclass(frozen=True)
class FigureRun:
    """One training with the paper's algorithm: nothing is proven for it."""

    data: str
    width: int = MIDDLE
    follow: float = 0.0
    """t of C = t·‖W‖; 0 keeps the C of the recipe."""
    noise: float = 1.0
    epochs: int = SHORT

    @property
    def name(self) -> str:
        """What tells the run from the others."""
        threshold = f"t = {self.follow:g}" if self.follow else "fixed C"
        length = f"{self.epochs} epochs"
        return f"{self.data}, n = {self.width}, {threshold}, noise {self.noise:g}, {length}"

    @property
    def recipe(self) -> Recipe:
        """The paper's recipe with these settings, on the records that are used."""
        unused = _TRAINING_RECORDS[self.data] - HELD_OUT - RECORDS
        changes = {
            "data.holdout": HELD_OUT,
            "data.public": unused,
            "model.width": self.width,
            "method.follow": self.follow,
            "privacy.noise": self.noise,
            "training.epochs": self.epochs,
            "run.evaluate_every": EVERY,
        }
        settings = " ".join(f"--set {key}={value}" for key, value in changes.items())
        return recipe_of(f"000/{self.data}-paper {settings}", SEED)

    def row(self, rows: Iterable[Row]) -> Row | None:
        """What is stored of this run."""
        return next((row for row in rows if row["run"] == self.name), None)


@dataclass(frozen=True)
class FullRun:
    """A recipe of the paper as it is, scored on the test set: nothing is proven for it either."""

    name: str
    """Of the recipe."""

    @property
    def recipe(self) -> Recipe:
        """The recipe with the seed of all figures."""
        return recipe_of(self.name, SEED)

    def row(self, rows: Iterable[Row]) -> Row | None:
        """What is stored of this run."""
        return next((row for row in rows if row["run"] == self.name), None)


Trained = FigureRun | FullRun

FULL_FIXED = FullRun("000/cifar-10-paper")
FULL_MOVING = FullRun("000/cifar-10-paper-adaptive")
FIXED = FigureRun("cifar-10", epochs=LONG)
MOVING = tuple(FigureRun("cifar-10", follow=t, epochs=LONG) for t in FACTORS)


def by_width(data: str, follow: float = 0.0, noise: float = 1.0) -> tuple[FigureRun, ...]:
    """A run for each width; where a longer one has the same settings, its beginning is the run."""
    runs = (FigureRun(data, width, follow, noise) for width in WIDTHS)
    longer = {FigureRun(r.data, r.width, r.follow, r.noise): r for r in (FIXED, *MOVING)}
    return tuple(longer.get(run, run) for run in runs)


FIGURES: dict[str, tuple[Trained, ...]] = {
    "4": (FULL_FIXED, FULL_MOVING),
    "6": (FULL_FIXED,),
    "8": (FIXED, *MOVING),
    "14": MOVING,
    "11": (*by_width("mnist"), *by_width("cifar-10")),
    "13": (
        *by_width("cifar-10"),
        *by_width("cifar-10", FOLLOWED),
        *by_width("cifar-10", FOLLOWED, 2.0),
    ),
}


def missing(figures: Iterable[str], rows: list[Row]) -> list[Trained]:
    """Runs that are not stored, or that were made with an older form of their recipe."""
    wanted = dict.fromkeys(run for figure in figures for run in FIGURES[figure])
    kept = {(row["run"], row["recipe_digest"]) for row in rows}
    return [run for run in wanted if (run.name, run.recipe.digest()) not in kept]


def summed_up(run: Trained, folder: Path) -> Row:
    """What the figures are drawn from, of a finished run."""
    found = load_run(folder)
    metrics = found.metrics
    seen = metrics["sanitization"]
    return {
        "run": run.name,
        "recipe_digest": run.recipe.digest(),
        "records": metrics["records"],
        "batch_size": run.recipe.training.batch_size,
        "evaluated_on": metrics["evaluated_on"],
        "evaluations": [[e["epoch"], e["accuracy"]] for e in metrics["evaluations"]],
        **{key: seen[key] for key in ("claimed", "threshold", "norm", "spread")},
        "delta": metrics["delta"],
        "training_seconds": metrics["training_seconds"],
        "versions": found.certificate["versions"],
    }


def stored(folder: Path = RESULTS) -> list[Row]:
    """All runs that were measured."""
    path = folder / FILE
    rows: list[Row] = json.loads(path.read_text("utf-8"))["runs"] if path.exists() else []
    return rows


def add(row: Row, folder: Path = RESULTS) -> None:
    """Keep a run; an older form of it is replaced."""
    others = [other for other in stored(folder) if other["run"] != row["run"]]
    rows = sorted([*others, row], key=lambda each: str(each["run"]))
    text = json.dumps({"runs": rows}, indent=1, ensure_ascii=False) + "\n"
    (folder / FILE).write_text(text, "utf-8")


def accuracy_at(row: Row, epoch: int) -> float:
    """In percent, at the evaluation after that many epochs."""
    found = min(row["evaluations"], key=lambda each: abs(each[0] - epoch))
    if abs(found[0] - epoch) > 0.01:
        raise ValueError(f"{row['run']} was not evaluated after {epoch} epochs")
    return 100 * float(found[1])
