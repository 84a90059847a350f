"""A table of a paper repeated: its rows trained over seeds, and what came of them."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit import verify
from tacit.board import Board
from tacit.papers.index import Item, Row
from tacit.report.load import Run, load_run
from tacit.sweep import Training, train_all


@dataclass(frozen=True)
class Result:
    """A row over its finished runs. ε are the largest of them, so none promises more than shown."""

    row: Row
    runs: tuple[Run, ...]
    wanted: int

    @property
    def accuracies(self) -> list[float]:
        """As shares, one for each run."""
        found = [(run.metrics.get("final") or {}).get("accuracy") for run in self.runs]
        return [float(value) for value in found if value is not None]

    @property
    def accuracy(self) -> float | None:
        """Their mean."""
        return statistics.mean(self.accuracies) if self.accuracies else None

    @property
    def spread(self) -> float | None:
        """Their standard deviation."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    @property
    def proven(self) -> float | None:
        """What a proof covers."""
        return max((run.guarantee.epsilon for run in self.runs if run.guarantee), default=None)

    @property
    def claimed(self) -> float | None:
        """What the paper's arithmetic says of our runs."""
        return _largest(self.runs, "claimed")

    @property
    def audited(self) -> float | None:
        """What attacks showed, where some were made."""
        return _largest(self.runs, "audited")

    @property
    def minutes(self) -> float | None:
        """What a run takes: the mean of these, or what the index knows where there are none."""
        found = [run.metrics.get("training_seconds") for run in self.runs]
        seconds = [float(value) for value in found if value is not None]
        return statistics.mean(seconds) / 60 if seconds else self.row.minutes

    def as_json(self) -> dict[str, Any]:
        """Plain values; accuracies in percent, as papers print them."""
        return {
            "what": self.row.what,
            "recipe": self.row.recipe,
            "paper": {"accuracy": self.row.accuracy, "epsilon": self.row.epsilon},
            "equal": self.row.equal,
            "runs": len(self.runs),
            "wanted": self.wanted,
            "accuracies": [100 * each for each in self.accuracies],
            "accuracy": None if self.accuracy is None else 100 * self.accuracy,
            "spread": None if self.spread is None else 100 * self.spread,
            "claimed": self.claimed,
            "proven": self.proven,
            "audited": self.audited,
            "minutes": self.minutes,
        }


def _largest(runs: Sequence[Run], key: str) -> float | None:
    found = [(run.certificate.get(key) or {}).get("epsilon") for run in runs]
    return max((float(value) for value in found if value is not None), default=None)


def trainings(row: Row, seeds: int, out: Path) -> list[Training]:
    """The runs of a row, at places named after all that decides them."""
    found, kind = [], _name(row)
    for seed in range(seeds):
        recipe = row.wanted(seed)
        place = out / f"{kind}-seed-{seed}-{recipe.digest()[:8]}"
        found.append(Training(place.name, kind, recipe, place))
    return found


def _name(row: Row) -> str:
    return re.sub(r"[^\w.]+", "-", row.command).strip("-.")


def repeat(
    rows: Sequence[Row],
    *,
    seeds: int,
    out: Path,
    jobs: int = 1,
    data_dir: Path | None = None,
    board: Board | None = None,
) -> None:
    """Train what is missing. Finished runs are kept and interrupted ones go on."""
    train_all(
        [training for row in rows for training in trainings(row, seeds, out)],
        jobs=jobs,
        data_dir=data_dir,
        board=board,
    )


def results(rows: Sequence[Row], seeds: int, out: Path) -> list[Result]:
    """What finished runs say, each verified against its ledger first."""
    found = []
    for row in rows:
        wanted = trainings(row, seeds, out)
        finished = [training.out for training in wanted if training.finished]
        for path in finished:
            verify.account(path)
        found.append(Result(row, tuple(load_run(path) for path in finished), len(wanted)))
    return found


def minutes(row: Row, seeds: int, out: Path) -> float | None:
    """What a run of a row takes here, or else took elsewhere."""
    here = [training.out for training in trainings(row, seeds, out) if training.finished]
    return Result(row, tuple(load_run(path) for path in here), seeds).minutes


def state(item: Item, seeds: int, out: Path) -> str:
    """In a few words, what there is of an item."""
    if item.not_here:
        return "not here"
    if item.too_long:
        return "too long for two cores"
    if not item.rows:
        return "drawn by a command"
    wanted = [training for row in item.rows for training in trainings(row, seeds, out)]
    done = sum(training.finished for training in wanted)
    return f"{done} of {len(wanted)} runs"
