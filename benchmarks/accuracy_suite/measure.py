"""Recipes trained over seeds, each run summed up and kept as soon as it is finished."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from clipping_suite.machine import processor
from rich.console import Console

from accuracy_suite.stored import Run, add, is_stored, recipe_of
from tacit.board import ProgressBoard
from tacit.report import values
from tacit.report.load import load_run
from tacit.sweep import Training, train_all


@dataclass(frozen=True)
class Wanted:
    """A run of a recipe that is not stored yet."""

    recipe: str
    seed: int
    training: Training


class Collector(ProgressBoard):
    """Shows how far the trainings are, and keeps a summary of each that ends."""

    def __init__(self, page: str, wanted: dict[str, Wanted], threads: int) -> None:
        super().__init__(Console())
        self._page, self._wanted, self._threads = page, wanted, threads

    def ended(self, name: str, failure: str = "") -> None:
        """Keep it, unless it failed."""
        super().ended(name, failure)
        if not failure:
            self.keep(self._wanted[name])

    def keep(self, wanted: Wanted) -> None:
        """Add the summary of a finished run to its page."""
        run = summed_up(wanted, self._threads)
        add(self._page, run)
        self._console.print(f"{wanted.recipe}, seed {wanted.seed}: {100 * run['accuracy']:.2f} %")


def measure(
    page: str, recipes: Sequence[str], seeds: int, *, jobs: int, data_dir: Path | None, runs: Path
) -> None:
    """Train what is not stored, seed by seed; interrupted runs go on, children end with us."""
    missing = [
        planned(recipe, seed, runs)
        for seed in range(seeds)
        for recipe in recipes
        if not is_stored(page, recipe, seed)
    ]
    threads = torch.get_num_threads() if jobs == 1 else 1
    collector = Collector(page, {each.training.name: each for each in missing}, threads)
    for each in missing:
        if each.training.finished:
            collector.keep(each)
    train_all([each.training for each in missing], jobs=jobs, data_dir=data_dir, board=collector)


def planned(name: str, seed: int, runs: Path) -> Wanted:
    """A training of a recipe as it is today, in a folder that says so."""
    recipe = recipe_of(name, seed)
    stem = re.sub(r"[^\w.]+", "-", name).strip("-.")
    place = runs / f"{stem}-seed-{seed}-{recipe.digest()[:8]}"
    return Wanted(name, seed, Training(place.name, name, recipe, place))


def summed_up(wanted: Wanted, threads: int) -> Run:
    """What is kept of a run."""
    run, recipe = load_run(wanted.training.out), wanted.training.recipe
    certificate, metrics = run.certificate, run.metrics
    return {
        "recipe": wanted.recipe,
        "recipe_digest": recipe.digest(),
        "seed": wanted.seed,
        "accuracy": metrics["final"]["accuracy"],
        "evaluated_on": metrics["evaluated_on"],
        "proven": certificate["proven"],
        "claimed": values.finite((certificate["claimed"] or {}).get("epsilon")),
        "relation": run.guarantee.relation if run.guarantee else None,
        "delta": recipe.privacy.delta,
        "noise": certificate.get("noise_multiplier"),
        "steps": certificate["steps"],
        "batch_size": certificate.get("expected_batch_size"),
        "outcome": certificate.get("outcome") or {},
        "stopped": certificate.get("stopped"),
        "training_seconds": metrics["training_seconds"],
        "inference_seconds": metrics["inference_seconds"],
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "threads": threads,
        "versions": certificate["versions"],
    }
