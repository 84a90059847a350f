"""Search over a recipe's settings under one budget: on public data, or by private selection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tacit.board import Board
from tacit.config import Recipe
from tacit.data.published import DATASETS
from tacit.errors import ArgumentError
from tacit.loop import Result
from tacit.privacy.selection import NAMED_SHAPES, RunCount
from tacit.progress import Watcher
from tacit.recipe_sections import DataRecipe
from tacit.rundir import RunDir
from tacit.search_space import Settings, Space, changed

Score = Literal["public", "charged"]

MOST_CANDIDATES = 100
_HELD_OUT = 5  # one in so many public records is kept to compare trials on
_SCORE_NOISE = 0.01  # of the number of records


@dataclass(frozen=True)
class Tuned:
    """The run with the best settings, and what may be said of the search for them."""

    result: Result
    settings: Settings
    tried: tuple[tuple[Settings, float | None], ...]
    """Every trial with its accuracy; none of a private search, which hides all but the best."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "run": str(self.result.path),
            "settings": self.settings,
            "tried": [{"settings": each, "accuracy": found} for each, found in self.tried],
            "certificate": self.result.certificate,
            "metrics": self.result.metrics,
        }


def tune_on_public(
    recipe: Recipe,
    tried: Mapping[str, str],
    public_data: str,
    *,
    out: Path,
    trials: int = 20,
    jobs: int = 1,
    data_dir: Path | None = None,
    board: Board | None = None,
    watcher: Watcher | None = None,
) -> Tuned:
    """Find settings on public data, free of charge, and train once with them on the private data.

    Guarantee: no private record is looked at before the one run in `out`/run, whose certificate
    says what its settings were found on. `public_data` is a dataset by name, or a file whose
    records its owner declares public: they get no protection.
    """
    from tacit.public_search import search
    from tacit.train import stored_recipe, train

    space = Space.parse(tried)
    space.check(recipe)
    if trials < 1:
        raise ArgumentError(f"trials is {trials}; it must be at least 1")
    stand_in = _on_public_data(recipe, public_data, data_dir)
    done = search(
        stand_in, space, trials, out / "search", jobs=jobs, data_dir=data_dir, board=board
    )
    best = max(done, key=lambda trial: trial.score)
    chosen = {**best.settings, "privacy.tuned_on": _said(space, done, public_data)}
    path = out / "run"
    final, resume = changed(recipe, chosen), RunDir(path).ledger.exists()
    if resume:
        final = stored_recipe(path)
        if changed(final, chosen).digest() != final.digest():
            raise ArgumentError(
                f"{path} was trained with the settings of a shorter search; a second run would be a"
                " second release. Search as it was started with, or in another directory"
            )
    result = train(final, data_dir=data_dir, out=path, resume=resume, watcher=watcher)
    tried_settings = tuple((trial.settings, trial.accuracy) for trial in done)
    return Tuned(result, best.settings, tried_settings)


def _said(space: Space, done: list[Any], public_data: str) -> str:
    keys = ", ".join(part.key for part in space.parts)
    return (
        f"free of charge: {len(done)} settings of {keys} were tried on {public_data}, which is"
        " treated as public; the training records were not looked at, and one run was made on them"
    )


def _on_public_data(recipe: Recipe, public_data: str, data_dir: Path | None) -> Recipe:
    """The same recipe on the public records, a part of which is held out to compare trials on."""
    from tacit.train import prepare

    if public_data == recipe.data.name:
        raise ArgumentError(
            f"the public data is {public_data!r}, on which the recipe itself trains; name other"
            " records, or search on the private ones: --on private (in Python: tune_privately)"
        )
    options = {} if public_data in DATASETS else recipe.data.options
    values = recipe.model_dump(mode="json")
    values["data"] = DataRecipe(name=public_data, options=options).model_dump(mode="json")
    found = Recipe.parse(values)
    held = len(prepare(found, data_dir).train) // _HELD_OUT
    return changed(found, {"data.holdout": held})


def tune_privately(
    recipe: Recipe,
    tried: Mapping[str, str],
    *,
    out: Path,
    runs: float = 10.0,
    law: str = "geometric",
    score: Score = "public",
    score_noise: float | None = None,
    jobs: int = 1,
    data_dir: Path | None = None,
    announce: Callable[[], None] | None = None,
) -> Tuned:
    """Try settings on the private data itself and release the best run alone, in `out`.

    Guarantee: what is released is (ε, δ)-differentially private with the recipe's ε, the search
    included. `runs` is how many there are in expectation; how many there were is hidden. With
    `score` "charged" runs are compared by a noisy count over the training records, which is part
    of what is charged; with "public" on held-out records without protection. `announce` is called
    once all that was given has been checked, before the first run.
    """
    from tacit.private_search import PrivateSearch, search
    from tacit.train import prepare, stored_recipe

    space = Space.parse(tried)
    space.check(recipe)
    count = RunCount(runs, shape_of(law))
    ready = prepare(recipe, data_dir)
    noise = None
    if score == "charged":
        noise = _SCORE_NOISE * len(ready.train) if score_noise is None else score_noise
    elif score_noise is not None:
        raise ArgumentError("score_noise is for score 'charged'; leave out one of the two")
    candidates = tuple(space.candidates(MOST_CANDIDATES))
    wanted = PrivateSearch(ready, candidates, count, noise)
    result = search(wanted, out, jobs=jobs, data_dir=data_dir, announce=announce)
    chosen = stored_recipe(out).model_dump(mode="json")
    settings = {}
    for part in space.parts:
        section, _, name = part.key.partition(".")
        settings[part.key] = chosen[section][name]
    return Tuned(result, settings, ())


def shape_of(law: str) -> float:
    """The shape of a law of the number of runs, by name or as a number.

    >>> shape_of("geometric"), shape_of("2.5")
    (1.0, 2.5)
    """
    if law in NAMED_SHAPES:
        return NAMED_SHAPES[law]
    try:
        return float(law)
    except ValueError:
        raise ArgumentError(
            f"law is {law!r}; it is one of {', '.join(NAMED_SHAPES)}, or the shape of a truncated"
            " negative binomial law as a number"
        ) from None
