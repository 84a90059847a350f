"""Search on public records: free of charge, so it may learn from its own results.

Candidates are trained on the public records as they would be on the private ones, under the same
budget, and compared on public records that they have not seen. Optuna proposes what to try next.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from tacit.board import Board, SilentBoard
from tacit.config import Recipe
from tacit.errors import ArgumentError, RunError
from tacit.progress import Moment
from tacit.rundir import RunDir
from tacit.search_space import Choice, Range, Settings, Space, changed
from tacit.sweep import Training, train_all

_WARM_UP = 8


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, and how well they did on public records."""

    settings: Settings
    accuracy: float | None
    score: float
    path: Path


def search(
    recipe: Recipe,
    space: Space,
    trials: int,
    out: Path,
    *,
    jobs: int = 1,
    data_dir: Path | None = None,
    board: Board | None = None,
) -> list[Trial]:
    """Try `trials` settings of a recipe on public data; every run is kept in `out`.

    Given again after an interruption it goes on: what was tried is on disk before it is trained.
    """
    asked, watching = _asked(out, recipe, space), board or SilentBoard()
    names = [_name(place) for place in range(max(trials, len(asked)))]
    finished = sum(_training(recipe, s, i, out).finished for i, s in enumerate(asked))
    with watching:
        watching.expect(dict.fromkeys(names[finished:], "search"), finished, jobs)
        return _searched(recipe, space, trials, out, asked, jobs, data_dir, _Shared(watching))


def _searched(
    recipe: Recipe,
    space: Space,
    trials: int,
    out: Path,
    asked: list[Settings],
    jobs: int,
    data_dir: Path | None,
    board: Board,
) -> list[Trial]:
    while True:
        trainings = [
            _training(recipe, settings, place, out) for place, settings in enumerate(asked)
        ]
        train_all(trainings, jobs=jobs, data_dir=data_dir, board=board)
        done = [_trial(settings, t) for settings, t in zip(asked, trainings, strict=True)]
        if len(done) >= trials:
            return done
        asked += _proposed(space, done, min(jobs, trials - len(done)))
        _keep(out, recipe, space, asked)


def _training(recipe: Recipe, settings: Settings, place: int, out: Path) -> Training:
    wanted = changed(recipe, settings)
    path = out / f"{place:04d}-{wanted.digest()[:8]}"
    return Training(_name(place), "search", wanted, path)


def _name(place: int) -> str:
    return f"trial {place + 1}"


class _Shared(SilentBoard):
    """A board that is there for the whole search, though trials come a few at a time."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def started(self, name: str) -> None:
        self._board.started(name)

    def show(self, name: str, moment: Moment) -> None:
        self._board.show(name, moment)

    def ended(self, name: str, failure: str = "") -> None:
        self._board.ended(name, failure)


def _trial(settings: Settings, training: Training) -> Trial:
    run = RunDir(training.out)
    final = run.read_json(run.metrics)["final"]
    accuracy = final["accuracy"]
    score = -final["loss"] if accuracy is None else accuracy
    return Trial(settings, accuracy, score if math.isfinite(score) else -math.inf, training.out)


def _proposed(space: Space, done: Sequence[Trial], count: int) -> list[Settings]:
    """What to try next: at random at first, then where earlier trials did well."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=len(done), n_startup_trials=_WARM_UP)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    distributions = {part.key: _distribution(part) for part in space.parts}
    for trial in done:
        values = {part.key: _to_optuna(part, trial.settings[part.key]) for part in space.parts}
        score = max(trial.score, -1e9)
        study.add_trial(
            optuna.trial.create_trial(params=values, distributions=distributions, value=score)
        )
    asked = [study.ask(distributions).params for _ in range(count)]
    return [
        {part.key: _from_optuna(part, values[part.key]) for part in space.parts} for values in asked
    ]


def _distribution(part: Choice | Range) -> BaseDistribution:
    if isinstance(part, Choice):
        return CategoricalDistribution([json.dumps(value) for value in part.values])
    if part.whole:
        return IntDistribution(int(part.low), int(part.high), log=part.by_logarithm)
    return FloatDistribution(part.low, part.high, log=part.by_logarithm)


def _to_optuna(part: Choice | Range, value: Any) -> Any:
    return json.dumps(value) if isinstance(part, Choice) else value


def _from_optuna(part: Choice | Range, value: Any) -> Any:
    return json.loads(value) if isinstance(part, Choice) else part.rounded(value)


def _asked(out: Path, recipe: Recipe, space: Space) -> list[Settings]:
    path = out / "search.json"
    if not path.exists():
        return []
    try:
        written = json.loads(path.read_bytes())
        same = (written["recipe"], written["space"]) == (recipe.digest(), space.as_json())
        asked: list[Settings] = written["tried"]
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: cannot be read ({error}); choose another directory") from None
    if not same:
        raise ArgumentError(
            f"{out} holds another search: give what it was started with, or another directory"
        )
    return asked


def _keep(out: Path, recipe: Recipe, space: Space, asked: Sequence[Settings]) -> None:
    values = {"recipe": recipe.digest(), "space": space.as_json(), "tried": list(asked)}
    RunDir(out).write_json(out / "search.json", values)
