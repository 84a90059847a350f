"""Summaries of runs as docs/results keeps them, made without training."""

from typing import Any

from accuracy_suite.stored import Run, Summary, present_digest


def run(name: str, accuracy: float = 0.9, seed: int = 0, **values: Any) -> Run:
    """A run of a built-in recipe as it is today."""
    return {
        "recipe": name,
        "recipe_digest": present_digest(name, seed),
        "seed": seed,
        "accuracy": accuracy,
        "evaluated_on": "10 records",
        "proven": {"add-or-remove-one": 1.0, "replace-one": 2.0},
        "claimed": 0.5,
        "relation": "add-or-remove-one",
        "delta": 1e-5,
        "noise": 2.5,
        "steps": 1200,
        "outcome": {},
        "training_seconds": 90.0,
        "machine": "a machine",
        "threads": 2,
    } | values


def seeds(name: str, *accuracies: float, **values: Any) -> Summary:
    """A recipe with one run for each accuracy."""
    runs = [run(name, accuracy, seed, **values) for seed, accuracy in enumerate(accuracies)]
    return Summary(name, tuple(runs))
