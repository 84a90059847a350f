"""How long the rows of the papers take that were not run: estimated from their first steps.

    python benchmarks/paper_minutes.py --data-dir DATA

One thread; evaluations are not counted, and runs that end by themselves are taken at their
longest. Rows that differ in epochs only, or in settings that cost no time, are tried once. Writes
docs/results/paper-minutes.json, from which `make pages` takes what `tacit papers` shows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import torch
from accuracy_suite.everything import write_all
from accuracy_suite.stored import RESULTS, run_pages, stored, summaries

from tacit.config import Recipe
from tacit.papers.index import papers
from tacit.progress import Moment, NothingToClose
from tacit.train import train

FILE = RESULTS / "paper-minutes.json"


class Enough(Exception):
    """The first steps have been seen."""


class FirstSteps(NothingToClose):
    """Ends a training after some seconds, and knows how long the whole would take."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._started = time.monotonic()
        self.minutes = 0.0

    def __enter__(self) -> FirstSteps:
        self._started = time.monotonic()
        return self

    def show(self, moment: Moment) -> None:
        """Extrapolate; stop where that is good enough."""
        elapsed = time.monotonic() - self._started
        self.minutes = (elapsed + moment.seconds_left) / 60
        if elapsed > self._seconds and moment.step < moment.steps:
            raise Enough


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0, help="of training for each kind")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, float] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    tried: dict[tuple[object, ...], float] = {}
    runs = summaries(run for page in run_pages() for run in stored(page))
    rows = {row.command: row for paper in papers() for item in paper.items for row in item.rows}
    for command, row in rows.items():
        if command in found or (command in runs and runs[command].current):
            continue
        recipe = row.wanted(seed=0)
        kind = _kind(recipe)
        if kind not in tried:
            tried[kind] = estimated(recipe, given.seconds, given.data_dir) / recipe.training.epochs
        found[command] = round(tried[kind] * recipe.training.epochs, 2)
        print(f"{command}: {found[command]} min", flush=True)
        FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")
    write_all()


def estimated(recipe: Recipe, seconds: float, data_dir: Path | None) -> float:
    """Minutes of the whole run."""
    watcher = FirstSteps(seconds)
    with tempfile.TemporaryDirectory() as folder, suppress(Enough):
        train(recipe, data_dir=data_dir, out=Path(folder) / "run", watcher=watcher)
    return watcher.minutes


def _kind(recipe: Recipe) -> tuple[object, ...]:
    """Recipes of one kind take the same time for an epoch."""
    method, training = recipe.method, recipe.training
    variant = getattr(method, "guarantee", ""), getattr(method, "validation_batch_size", 0)
    model = recipe.model.name, recipe.features is None
    return recipe.data.name, *model, method.name, *variant, training.batch_size, training.views


if __name__ == "__main__":
    main()
