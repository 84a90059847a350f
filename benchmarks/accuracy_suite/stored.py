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
    """A recipe by name, with changes as `tacit train` takes them.

    >>> recipe_of("mnist --epsilon 1 --set run.evaluate_every=2").privacy.epsilon
    1.0
    """
    recipe, *words = name.split(" ")
    if words[::2] != [word for word in words[::2] if word in ("--epsilon", "--set")]:
        raise ArgumentError(f"{name!r} is not RECIPE [--epsilon E] [--set KEY=VALUE]…")
    changes = {} if seed is None else {"run.seed": str(seed)}
    for option, value in zip(words[::2], words[1::2], strict=True):
        key, _, text = value.partition("=") if option == "--set" else ("privacy.epsilon", "", value)
        changes[key] = text
    return config.load(recipe, changes)


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
    def data(self) -> str:
        """The dataset."""
        return recipe_of(self.name).data.name

    @property
    def method(self) -> str:
        """How it was trained."""
        return recipe_of(self.name).method.name

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
    def scored(self) -> str:
        """Both, as pages show them."""
        spread = "" if self.spread is None else f" ± {self.spread:.2f}"
        return f"{self.accuracy:.2f}{spread}"

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
    def noise(self) -> float | None:
        """Noise multiplier of a run; None without privacy."""
        noise: float | None = self.runs[0]["noise"]
        return noise

    @property
    def minutes(self) -> float:
        """Mean training time."""
        return statistics.mean(float(run["training_seconds"]) for run in self.runs) / 60

    def outcome(self, key: str) -> float:
        """Mean of something that the method counted."""
        return statistics.mean(float(run["outcome"][key]) for run in self.runs)

    @property
    def stopped_after(self) -> float:
        """Mean number of steps after which a rule ended the runs; an error where none did."""
        return statistics.mean(float(run["stopped"]["step"]) for run in self.runs)

    @property
    def claimed_at_stop(self) -> float:
        """What a paper's arithmetic says was spent by then, at most."""
        return max(float(run["stopped"]["claimed"]) for run in self.runs)

    @property
    def machine(self) -> str:
        """Where they ran, and on how many threads each."""
        return "; ".join(sorted({_machine(run) for run in self.runs}))

    @property
    def current(self) -> bool:
        """Whether every run was made with the recipe as it is today."""
        return all(
            run["recipe_digest"] == present_digest(self.name, run["seed"]) for run in self.runs
        )


def _machine(run: Run) -> str:
    threads = run.get("threads", 1)
    return f"{run['machine']}, {threads} thread{'s' if threads > 1 else ''}"


def stored(page: str) -> list[Run]:
    """The runs of a page."""
    path = RESULTS / f"{page}.json"
    rows: list[Run] = json.loads(path.read_text("utf-8")) if path.exists() else []
    return rows


def is_stored(page: str, name: str, seed: int) -> bool:
    """Whether there is a run of the recipe as it is today."""
    digest = present_digest(name, seed)
    return any(run["recipe_digest"] == digest for run in stored(page))


def add(page: str, run: Run) -> None:
    """Keep a run; one of an older form of the same recipe is replaced."""
    key = (run["recipe"], run["seed"])
    others = [r for r in stored(page) if (r["recipe"], r["seed"]) != key]
    runs = sorted([*others, run], key=lambda r: (r["recipe"], r["seed"]))
    path = RESULTS / f"{page}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(runs, indent=1, ensure_ascii=False) + "\n", "utf-8")


def run_pages() -> list[str]:
    """The pages whose JSON holds runs of recipes; those in folders hold trials, not results."""
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
