"""Figures 4, 6, 8, 11, 13 and 14 of paper 000 from runs of our own.

    python benchmarks/sanitization_figures.py --figures 4 8 14 --jobs 2 --data-dir DATA

Each finished run is kept in docs/results/sanitization-figures.json at once. Interrupted, the same
command goes on where it stopped, also within a run; a run is repeated when its recipe has changed.
Figures and their part of docs/results/sanitization.md are made from that file alone: `--figures`
without a name only draws again. Figures 4 and 6 are of the paper's recipes as they are, an hour of
one core each; runs that `benchmarks/accuracy.py` left behind serve for them.
"""

from __future__ import annotations

import re
from pathlib import Path

from accuracy_suite.command import resumable, training_parser
from accuracy_suite.everything import write_all
from accuracy_suite.measure import planned
from accuracy_suite.stored import RESULTS
from rich.console import Console
from sanitization_suite.charts import charts
from sanitization_suite.runs import (
    FIGURES,
    SEED,
    FullRun,
    Trained,
    add,
    missing,
    stored,
    summed_up,
)

from tacit.board import ProgressBoard
from tacit.sweep import Training, train_all


class Keeper(ProgressBoard):
    """Shows how far the trainings are, and keeps what figures need of each that ends."""

    def __init__(self, wanted: dict[str, tuple[Trained, Training]]) -> None:
        super().__init__(Console())
        self._wanted = wanted

    def ended(self, name: str, failure: str = "") -> None:
        """Keep it, unless it failed."""
        super().ended(name, failure)
        if not failure:
            self.keep(name)

    def keep(self, name: str) -> None:
        """Add a finished run to the file."""
        run, training = self._wanted[name]
        row = summed_up(run, training.out)
        add(row)
        self._console.print(f"{run.name}: {100 * row['evaluations'][-1][1]:.2f} %")


def main() -> None:
    parser = training_parser(__doc__, runs="build/sanitization-figures")
    parser.add_argument("--figures", nargs="*", default=list(FIGURES), choices=list(FIGURES))
    given = parser.parse_args()
    with resumable(draw):
        measure(given.figures, given.jobs, given.data_dir, given.runs)


def measure(figures: list[str], jobs: int, data_dir: Path | None, runs: Path) -> None:
    """Train what is not stored."""
    runs_wanted = [(run, _training(run, runs)) for run in missing(figures, stored())]
    wanted = {training.name: (run, training) for run, training in runs_wanted}
    keeper = Keeper(wanted)
    for name, (_, training) in wanted.items():
        if training.finished:
            keeper.keep(name)
    trainings = [training for _, training in wanted.values()]
    train_all(trainings, jobs=jobs, data_dir=data_dir, board=keeper)


def _training(run: Trained, runs: Path) -> Training:
    if isinstance(run, FullRun):
        return planned(run.name, SEED, runs.parent / "accuracy").training
    stem = re.sub(r"[^\w.]+", "-", run.name)
    out = runs / f"{stem}-{run.recipe.digest()[:8]}"
    return Training(run.name, f"{run.data}, {run.epochs} epochs", run.recipe, out)


def draw() -> None:
    """The figures, and the pages that show them."""
    for chart in charts(stored()):
        (RESULTS / f"{chart.name}.svg").write_text(chart.svg(), "utf-8")
    write_all()


if __name__ == "__main__":
    main()
