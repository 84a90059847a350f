"""Runs as docs/results/*.json keeps them, and each recipe summed up over its seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tacit import config
from tacit.config import Recipe
from tacit.errors import ArgumentError

RESULTS = Path(__file__).parent.parent.parent / "docs" / "results"
Run = dict[str, Any]


def recipe_of(name: str, seed: int | None = None) -> Recipe:
    """A recipe by name, or by name and budget as in `tacit train NAME --epsilon 1`."""
    recipe, _, epsilon = name.partition(" --epsilon ")
    changes = {"privacy.epsilon": epsilon} if epsilon else {}
    seeded = {} if seed is None else {"run.seed": str(seed)}
    return config.load(recipe, {**changes, **seeded})


@cache
def present_digest(name: str, seed: int) -> str | None:
    """The digest of a recipe as it is today; None where there is no such recipe any more."""
    try:
        return recipe_of(name, seed).digest()
    except ArgumentError:
        return None


@dataclass(frozen=True)
class Summary:
    """A recipe over its stored runs. ε are the largest of them: none promises more than shown."""

    name: str
    runs: tuple[Run, ...]

    @property
    def accuracies(self) -> list[float]:
        """In percent, one for each run."""
        return [100 * run["accuracy"] for run in self.runs]

    @property
    def accuracy(self) -> float:
        """Their mean."""
        return statistics.mean(self.accuracies)

    @property
    def spread(self) -> float | None:
        """Their standard deviation."""
        return statistics.stdev(self.accuracies) if len(self.runs) > 1 else None

    @property
    def relation(self) -> str | None:
        """What the proof is about; None where nothing is proven."""
        relation: str | None = self.runs[0]["relation"]
        return relation

    @property
    def proven(self) -> float | None:
        """ε under that relation."""
        found = [run["proven"][run["relation"]] for run in self.runs if run["relation"]]
        return max(found, default=None)

    @property
    def claimed(self) -> float | None:
        """What a paper's arithmetic says of these runs, where that is a number."""
        return max((r["claimed"] for r in self.runs if r["claimed"] is not None), default=None)

    @property
    def delta(self) -> float:
        """The largest δ."""
        return max(float(run["delta"]) for run in self.runs)

    @property
    def seeds(self) -> int:
        """How many runs there are."""
        return len(self.runs)

    @property
    def steps(self) -> int:
        """Steps of a run."""
        return int(self.runs[0]["steps"])

    @property
    def noise(self) -> float:
        """Noise multiplier of a run."""
        return float(self.runs[0]["noise"])

    @property
    def minutes(self) -> float:
        """Mean training time."""
        return statistics.mean(run["training_seconds"] for run in self.runs) / 60

    def outcome(self, key: str) -> float:
        """Mean of something that the method counted."""
        return statistics.mean(run["outcome"][key] for run in self.runs)

    @property
    def machines(self) -> list[str]:
        """Where they ran."""
        return sorted({run["machine"] for run in self.runs})

    @property
    def current(self) -> bool:
        """Whether every run was made with the recipe as it is today."""
        return all(
            run["recipe_digest"] == present_digest(self.name, run["seed"]) for run in self.runs
        )


def stored(page: str) -> list[Run]:
    """The runs of a page."""
    path = RESULTS / f"{page}.json"
    rows: list[Run] = json.loads(path.read_text("utf-8")) if path.exists() else []
    return rows


def run_pages() -> list[str]:
    """The pages whose JSON holds runs of recipes."""
    return sorted(path.stem for path in RESULTS.glob("*.json") if _holds_runs(path))


def _holds_runs(path: Path) -> bool:
    found = json.loads(path.read_text("utf-8"))
    return isinstance(found, list) and bool(found) and "recipe_digest" in found[0]


def summaries(runs: Iterable[Run]) -> dict[str, Summary]:
    """The runs by their recipe, in order of its name."""
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        by_name.setdefault(run["recipe"], []).append(run)
    return {name: Summary(name, tuple(by_name[name])) for name in sorted(by_name)}
