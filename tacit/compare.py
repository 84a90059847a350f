"""Compare runs by their directories alone; recipes are trained first, at equal proven budgets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit import config, verify
from tacit.board import Board
from tacit.config import Recipe
from tacit.errors import ArgumentError, RunError
from tacit.method_sections import PlainRecipe
from tacit.report.comparison import write_comparison
from tacit.report.groups import Group, Member, flat
from tacit.report.labels import labelled
from tacit.report.load import load_run
from tacit.rundir import RunDir
from tacit.sweep import Training, train_all


@dataclass(frozen=True)
class Comparison:
    """Groups of verified runs, the page about them, and its numbers."""

    groups: list[Group]
    page: Path
    numbers: dict[str, Any]


@dataclass(frozen=True)
class _Found:
    """What the items stand for: directories of finished runs, and runs still to be trained."""

    paths: list[Path] = field(default_factory=list)
    trainings: list[Training] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def compare(
    items: Sequence[str],
    *,
    epsilons: Sequence[float] = (),
    seeds: int | None = None,
    jobs: int = 1,
    changes: Mapping[str, str] | None = None,
    out: Path = Path("comparison"),
    data_dir: Path | None = None,
    board: Board | None = None,
) -> Comparison:
    """Put runs side by side: a table, a page, and every figure as SVG and CSV in `out`.

    An item is a run directory, a directory that holds some, or a recipe. A recipe is trained once
    per budget in `epsilons` (proven, under the recipe's own relation and δ) and per seed from 0 to
    `seeds` - 1; without `seeds`, once, from the operating system's entropy unless the recipe sets
    a seed. Runs lie in `out`/runs under names that hold a hash of their recipe: a finished one is
    not trained again, an interrupted one is resumed.

    Guarantee: the ledger, weights and certificate of every run were verified; ε is never rounded
    down. Raises LedgerError for a run whose files do not agree. Accuracy and times are taken from
    metrics.json, which no ledger covers.
    """
    _check(epsilons, seeds, jobs, changes or {})
    found = _found(items, epsilons, seeds, changes or {}, out / "runs")
    if not found.trainings and (epsilons or seeds or changes):
        raise ArgumentError(
            "epsilon, seeds and set say how to train a recipe, but only finished runs were given:"
            " leave them out, or add a recipe"
        )
    train_all(found.trainings, jobs=jobs, data_dir=data_dir, board=board)
    paths = [*found.paths, *(training.out for training in found.trainings)]
    members, copies = _once([_member(path) for path in paths])
    notes = [*found.notes, *copies]
    groups = labelled(members)
    written = write_comparison(groups, notes, out)
    return Comparison(groups, written.page, written.numbers)


def _check(
    epsilons: Sequence[float], seeds: int | None, jobs: int, changes: Mapping[str, str]
) -> None:
    for name, value in (("seeds", seeds), ("jobs", jobs)):
        if value is not None and value < 1:
            raise ArgumentError(f"{name} is {value}; it must be at least 1")
    for key, given in (("privacy.epsilon", epsilons), ("run.seed", seeds)):
        if given and key in changes:
            raise ArgumentError(
                f"{key} is set to {changes[key]} and given as an option: choose one"
            )
    if epsilons and "privacy.noise" in changes:
        raise ArgumentError(
            f"privacy.noise is set to {changes['privacy.noise']}, but epsilon is given, for which"
            " the noise is solved: leave out one of the two"
        )


def _found(
    items: Sequence[str],
    epsilons: Sequence[float],
    seeds: int | None,
    changes: Mapping[str, str],
    runs: Path,
) -> _Found:
    found = _Found()
    for item in items:
        path = Path(item)
        inside = sorted(p.parent for p in path.rglob("ledger.jsonl")) if path.is_dir() else []
        if inside == [path]:
            if not RunDir(path).finished:
                raise RunError(
                    f"{item} is not finished; continue it with tacit train --resume --out {item}"
                )
            found.paths.append(path)
        elif inside:
            for run in inside:
                if RunDir(run).finished:
                    found.paths.append(run)
                else:
                    found.notes.append(f"Left out because it is not finished: {run}")
        elif path.is_dir() and item not in config.builtin_names():
            raise ArgumentError(
                f"{item} holds no run: give a run directory, a directory of runs, or a recipe"
            )
        else:
            for training in _trainings(item, epsilons, seeds, changes, runs):
                if training not in found.trainings:
                    found.trainings.append(training)
    if not found.paths and not found.trainings:
        raise ArgumentError(
            "nothing to compare: none of the runs is finished"
            if items
            else "nothing to compare: give run directories or recipes"
        )
    return found


def _trainings(
    item: str,
    epsilons: Sequence[float],
    seeds: int | None,
    changes: Mapping[str, str],
    runs: Path,
) -> list[Training]:
    """The runs that a recipe stands for, each named after all that decides it."""
    from tacit.train import recipe_for

    recipe = recipe_for(item, dict(changes))
    stem = item if item in config.builtin_names() else Path(item).stem
    stem = re.sub(r"[^\w.]+", "-", stem).strip("-.") or "recipe"
    budgets: list[float | None] = [*epsilons]
    if not budgets or isinstance(recipe.method, PlainRecipe):
        budgets = [None]
    found = []
    for epsilon in budgets:
        if epsilon is not None:
            recipe = recipe_for(item, {**changes, "privacy.epsilon": repr(epsilon)})
        for seed in range(seeds) if seeds else [None]:
            wanted = _wanted(recipe, epsilon, seed)
            name = stem
            name += "" if epsilon is None else f"-epsilon-{epsilon:g}"
            name += "" if seed is None else f"-seed-{seed}"
            out = runs / f"{name}-{wanted.digest()[:8]}"
            found.append(Training(out.name, item, wanted, out))
    return found


def _wanted(recipe: Recipe, epsilon: float | None, seed: int | None) -> Recipe:
    settings: dict[str, Any] = {}
    if epsilon is not None:
        settings |= {"epsilon": epsilon, "noise": None}
    if seed is not None:
        settings["seed"] = seed
    return recipe.with_settings(**settings)


def _member(path: Path) -> Member:
    """A run that agrees with its ledger."""
    verify.account(path)
    return Member(path, load_run(path), flat(_settings(str(path / "recipe.toml"))))


def _settings(recipe: str) -> dict[str, Any]:
    """All settings of a recipe; of one from another version, those it names."""
    values = config.read(recipe)
    try:
        return Recipe.parse(values).model_dump(mode="json")
    except ArgumentError:
        return values


def _once(members: Sequence[Member]) -> tuple[list[Member], list[str]]:
    """Copies of one run count once, or their spread would look smaller than it is."""
    kept: dict[str, Member] = {}
    copies = []
    for member in members:
        first = kept.setdefault(member.identity, member)
        if first is not member:
            copies.append(f"Counted once: {member.path} is the same run as {first.path}")
    return list(kept.values()), copies
