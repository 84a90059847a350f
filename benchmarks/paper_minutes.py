"""How long the rows of the papers take that were not run: estimated from their first steps.

    python benchmarks/paper_minutes.py --data-dir DATA

Time of one processor, without evaluations; runs that end by themselves are taken at their longest.
Rows that differ in epochs only, or in settings that cost no time, are tried once. Rows whose first
steps take longer than 40 seconds are left out and named. Writes docs/results/paper-minutes.json,
from which `make pages` takes what `tacit papers` shows.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import torch
from accuracy_suite.everything import write_all
from accuracy_suite.stored import RESULTS, run_pages, stored, summaries

from tacit.config import Recipe
from tacit.method_sections import SelectiveRecipe
from tacit.papers.index import Row, papers
from tacit.progress import Moment, NothingToClose
from tacit.train import train

LONGEST = 40
WARM_UP, STEPS = 2, 5
FILE = RESULTS / "paper-minutes.json"


class Enough(Exception):
    """The first steps have been seen."""


class FirstSteps(NothingToClose):
    """Ends a training after some seconds, and knows how long the whole would take."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.process_time) -> None:
        self._seconds, self._clock = seconds, clock
        self._started = clock()
        self._seen: list[tuple[int, float]] = []
        self.minutes: float | None = None

    def __enter__(self) -> FirstSteps:
        self._started = self._clock()
        return self

    def show(self, moment: Moment) -> None:
        """Extrapolate from the steps after those that warm up; stop where that is good enough.

        Features count as nothing: they are computed once.
        """
        if moment.doing != "training":
            self._started = self._clock()
            return
        elapsed = self._clock() - self._started
        self._seen.append((moment.step, elapsed))
        step, seconds = self._seen[min(len(self._seen) - 1, WARM_UP)]
        taken, left = moment.step - step, moment.steps - moment.step
        if taken or not left:
            each = (elapsed - seconds) / max(taken, 1)
            self.minutes = (elapsed + each * left) / 60
            if left and taken >= STEPS and elapsed - seconds > self._seconds:
                raise Enough


def stop(*_: object) -> None:
    """What the alarm does to a training."""
    raise Enough


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0, help="of training for each kind")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, float] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    runs = summaries(run for page in run_pages() for run in stored(page))
    timed = {*found, *(name for name, run in runs.items() if run.current)}
    rows = [row for paper in papers() for item in paper.items for row in item.rows]

    def epoch(recipe: Recipe) -> float | None:
        return minutes_of_an_epoch(recipe, given.seconds, given.data_dir)

    for command, minutes in estimates([row for row in rows if row.command not in timed], epoch):
        if minutes is None:
            print(f"{command}: not a step in time", flush=True)
            continue
        found[command] = minutes
        print(f"{command}: {minutes} min", flush=True)
        FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")
    write_all()


def estimates(
    rows: Iterable[Row], epoch: Callable[[Recipe], float | None]
) -> Iterator[tuple[str, float | None]]:
    """Minutes of each row by its command, from those of an epoch, asked for once for each kind."""
    tried: dict[tuple[object, ...], float | None] = {}
    for command, row in {row.command: row for row in rows}.items():
        recipe = row.wanted(seed=0)
        kind = kind_of(recipe)
        if kind not in tried:
            tried[kind] = epoch(recipe)
        each = tried[kind]
        yield command, None if each is None else round(each * recipe.training.epochs, 2)


def minutes_of_an_epoch(recipe: Recipe, seconds: float, data_dir: Path | None) -> float | None:
    """From the first steps of a training; None where not enough of them were seen."""
    watcher = FirstSteps(seconds)
    signal.signal(signal.SIGPROF, stop)
    with tempfile.TemporaryDirectory() as folder, suppress(Enough):
        signal.setitimer(signal.ITIMER_PROF, LONGEST)
        train(recipe, data_dir=data_dir, out=Path(folder) / "run", watcher=watcher)
    signal.setitimer(signal.ITIMER_PROF, 0)
    return None if watcher.minutes is None else watcher.minutes / recipe.training.epochs


def kind_of(recipe: Recipe) -> tuple[object, ...]:
    """Recipes of one kind take about the same time for an epoch."""
    method = recipe.method
    selective = isinstance(method, SelectiveRecipe)
    variant = "selective" if selective else f"{method.name} {getattr(method, 'guarantee', '')}"
    model = recipe.model.name, recipe.features is None, recipe.training.views
    return recipe.data.name, *model, variant


if __name__ == "__main__":
    main()
