"""The attacks by name, and which of them suit a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from tacit.audit.canaries import DEFAULT_CANARIES, gradient_canaries
from tacit.audit.encoder_columns import EncoderColumns
from tacit.audit.input_canaries import InputCanaries
from tacit.audit.membership import DEFAULT_SHADOWS, Membership
from tacit.audit.models import PoolOf
from tacit.audit.plays import Play
from tacit.audit.protocol import Game, Played
from tacit.audit.signals import SCORES
from tacit.config import Recipe
from tacit.errors import ArgumentError
from tacit.method_sections import ClippedRecipe, SanitizationRecipe
from tacit.privacy import ledger
from tacit.rundir import RunDir
from tacit.sweep import Task
from tacit.train import prepare

GRADIENT_CANARIES = "gradient-canaries"
INPUT_CANARIES = "input-canaries"
_MOST_RUNS = 20
ENCODER_COLUMNS = "encoder-columns"
ATTACKS = (GRADIENT_CANARIES, INPUT_CANARIES, ENCODER_COLUMNS, *SCORES)


class Attack(Protocol):
    """What has to be run, and what came of it."""

    @property
    def name(self) -> str: ...

    @property
    def delta(self) -> float: ...

    @property
    def on_training_records(self) -> bool:
        """Whether figures are computed from the records of the run that is audited."""
        ...

    def tasks(self) -> list[Task]:
        """Everything that must be finished before `played`."""
        ...

    def played(self) -> list[Played]:
        """The outcome of every run."""
        ...


@dataclass(frozen=True)
class Repeated:
    """A game on made-up records, played several times."""

    game: Game
    seeds: tuple[int, ...]
    cache: Path
    on_training_records: bool = False

    @property
    def name(self) -> str:
        return self.game.name

    @property
    def delta(self) -> float:
        return self.game.delta

    def _plays(self) -> list[Play]:
        return [Play(self.game, seed, self.cache) for seed in self.seeds]

    def tasks(self) -> list[Task]:
        return list(self._plays())

    def played(self) -> list[Played]:
        return [play.outcome() for play in self._plays()]


@dataclass(frozen=True)
class Settings:
    """How much is played. `canaries` are counted over all runs: where a run cannot hold so many,
    there are several, unless `runs` is given."""

    canaries: int = DEFAULT_CANARIES
    runs: int | None = None
    seed: int = 0
    shadows: int = DEFAULT_SHADOWS
    targets: int = 1
    pairs: int | None = None

    def __post_init__(self) -> None:
        for name in ("canaries", "runs", "targets", "pairs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ArgumentError(f"{name} is {value}; it must be at least 1")
        if self.shadows < 2:
            raise ArgumentError(f"shadows is {self.shadows}; at least 2 are needed")


def attacks_for(
    recipe: Recipe,
    run: RunDir | None,
    names: Sequence[str],
    cache: Path,
    data_dir: Path | None,
    settings: Settings,
) -> list[Attack]:
    """The attacks of these names; without names the one that suits the method best.

    That is gradient canaries where gradients are clipped and noised, the encoder's columns where
    activations are, and otherwise a threshold on the loss; so also for a run whose encoder was
    frozen, where no column moves.
    """
    chosen = list(dict.fromkeys(names or [_best(recipe, run)]))
    for name in chosen:
        if name not in ATTACKS:
            near = get_close_matches(name, ATTACKS, 1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ArgumentError(f"attack is {name!r}; {hint}known: {', '.join(ATTACKS)}")
    return [_attack(name, recipe, run, cache, data_dir, settings) for name in chosen]


def _best(recipe: Recipe, run: RunDir | None) -> str:
    method = recipe.method
    if isinstance(method, ClippedRecipe):
        return GRADIENT_CANARIES
    if isinstance(method, SanitizationRecipe) and (run is None or not method.frozen):
        return ENCODER_COLUMNS
    return "loss-threshold"


def _attack(
    name: str,
    recipe: Recipe,
    run: RunDir | None,
    cache: Path,
    data_dir: Path | None,
    settings: Settings,
) -> Attack:
    if name == GRADIENT_CANARIES:
        records = _records(recipe, run, data_dir)
        game = gradient_canaries(recipe, records, settings.canaries)
        runs = settings.runs or min(_MOST_RUNS, -(-settings.canaries // game.canaries))
        return Repeated(game, _seeds(settings, runs), cache)
    if name == INPUT_CANARIES:
        seeds = _seeds(settings, settings.runs or 1)
        return Repeated(InputCanaries(recipe, settings.canaries, data_dir), seeds, cache, True)
    if name == ENCODER_COLUMNS:
        seeds = _seeds(settings, settings.runs or 1)
        return Repeated(EncoderColumns(recipe, settings.canaries, data_dir), seeds, cache, True)
    pool = PoolOf(recipe, settings.pairs, settings.seed, run.path if run else None)
    targets = 1 if run else settings.targets
    return Membership(name, pool, cache, targets, settings.shadows)


def _seeds(settings: Settings, runs: int) -> tuple[int, ...]:
    return tuple(range(settings.seed, settings.seed + runs))


def _records(recipe: Recipe, run: RunDir | None, data_dir: Path | None) -> int:
    """How many records the run was, or the recipe would be, trained on."""
    if run is not None:
        return int(ledger.read(run.ledger)[0].body["records"])
    return len(prepare(recipe.model_copy(update={"features": None}), data_dir).train)
