"""Stored runs of recipes that were never trained."""

from accuracy_suite.stored import Run, Summary, present_digest


def run(name: str, accuracy: float, seed: int = 0, epsilon: float | None = 2.0) -> Run:
    """A run as docs/results keeps it, of the recipe as it is today."""
    return {
        "recipe": name,
        "recipe_digest": present_digest(name, seed),
        "seed": seed,
        "accuracy": accuracy / 100,
        "relation": None if epsilon is None else "replace-one",
        "proven": {} if epsilon is None else {"replace-one": epsilon},
        "claimed": None if epsilon is None else epsilon / 2,
        "delta": 1e-5,
        "steps": 100,
        "noise": 1.0,
        "training_seconds": 60.0,
        "machine": "made up",
        "outcome": {},
    }


def summary(name: str, *accuracies: float, epsilon: float | None = 2.0) -> Summary:
    """Several seeds of a recipe."""
    return Summary(
        name, tuple(run(name, each, seed, epsilon) for seed, each in enumerate(accuracies))
    )
