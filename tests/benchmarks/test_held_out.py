"""The search on held-out records: equal for all, resumable, and adopted by the recipe."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import batch_clipping_sweeps
import pytest
from accuracy_suite import held_out, stored
from accuracy_suite.contest import contest
from accuracy_suite.held_out import (
    STARTS,
    Search,
    best_point,
    next_point,
    settings_of,
    trial_of,
)
from accuracy_suite.stored import recipe_of
from stored_runs import run, seeds

from tacit import config

FLAT, MULTIPLIED = "003/equal-mnist-individual-flat", "003/equal-mnist-individual-multiplied"


def hill(name: str) -> float:
    """Best at clip 0.3 and rate 1.6, wherever a search begins."""
    recipe = recipe_of(name)
    clip = math.log10(recipe.method.clip / 0.3)
    reach = math.log10(recipe.method.clip * recipe.training.learning_rate / 0.48)
    return 90 - 20 * clip**2 - 40 * reach**2


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Trials are not trained: they get the height of the hill. What was asked for is listed."""
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    names: list[str] = []

    def measured(page: str, recipes: Sequence[str], seeds: int, **how: Any) -> None:
        for name in recipes:
            assert seeds == 1 and not stored.is_stored(page, name, 0)
            names.append(name)
            stored.add(page, run(name, hill(name) / 100))

    monkeypatch.setattr(batch_clipping_sweeps, "measure", measured)
    return names


def searched(trials: int, *recipes: str) -> list[Search]:
    batch_clipping_sweeps.search(recipes, trials, 1, None, Path("unused"))
    return batch_clipping_sweeps.searches(recipes)


def test_a_trial_is_the_recipe_with_other_settings_evaluated_on_held_out_records() -> None:
    recipe, trial = recipe_of(FLAT, 0), recipe_of(trial_of(FLAT, 0.316, 1.58), 0)
    assert (trial.method.clip, trial.training.learning_rate) == (0.316, 1.58)
    assert trial.data.holdout == held_out.HELD_OUT
    assert trial.privacy.epsilon == recipe.privacy.epsilon
    assert trial.model == recipe.model and trial.data.public == recipe.data.public


def test_the_start_comes_first_then_neighbours_of_the_best() -> None:
    assert next_point({}) == (0, 0)
    found = {(0, 0): 50.0}
    assert next_point(found) == (0, 2)
    found[(0, 2)] = 60.0
    assert next_point(found) == (0, 4)
    found |= {(0, 4): 55.0, (2, 0): 40.0, (-2, 4): 41.0}
    assert next_point(found) == (0, 3), "finer steps once the large ones are known"
    found |= {(0, 3): 59.0, (0, 1): 58.0, (1, 1): 57.0, (-1, 3): 56.0}
    assert next_point(found) is None
    assert best_point(found) == (0, 2)
    assert best_point({(0, 0): 50.0, (2, -2): 50.0}) == (0, 0)


def test_everyone_gets_as_many_trials_and_comes_near_the_top(asked: list[str]) -> None:
    searches = searched(8, FLAT, MULTIPLIED)
    for search in searches:
        assert sum(name.startswith(f"{search.recipe} ") for name in asked) == 8
        start = hill(trial_of(search.recipe, *STARTS[search.recipe].at((0, 0))))
        best = max(search.found.values())
        assert best == pytest.approx(hill(trial_of(search.recipe, *search.best)))
        assert best > start and best > 80


def test_an_interrupted_search_goes_on_as_if_it_had_not_been(
    asked: list[str], tmp_path: Path
) -> None:
    searched(3, FLAT)
    (resumed,) = searched(6, FLAT)
    assert len(asked) == len(set(asked)) == 6
    (tmp_path / f"{held_out.PAGE}.json").unlink()
    (at_once,) = searched(6, FLAT)
    assert asked[6:] == asked[:6]
    assert at_once.found == resumed.found


def test_what_was_found_becomes_the_recipe_and_says_what_it_was_tried_on(
    asked: list[str], tmp_path: Path
) -> None:
    (search,) = searched(4, FLAT)
    (tmp_path / "003").mkdir()
    batch_clipping_sweeps.adopt([FLAT, MULTIPLIED], tmp_path)
    assert [path.stem for path in (tmp_path / "003").iterdir()] == [FLAT.removeprefix("003/")]
    recipe = config.load(str(tmp_path / f"{FLAT}.toml"))
    assert (recipe.method.clip, recipe.training.learning_rate) == search.best
    assert recipe.privacy.tuned_on.startswith("4 settings")
    assert "5,000 records held out" in recipe.privacy.tuned_on
    before = config.load(FLAT)
    same = {"clip": before.method.clip, "learning_rate": before.training.learning_rate}
    assert recipe.with_settings(**same, tuned_on=before.privacy.tuned_on) == before


def test_adopting_does_not_make_stored_trials_obsolete(asked: list[str]) -> None:
    (search,) = searched(2, FLAT)
    values = held_out.adopted(search)
    for name, trial in search.trials.items():
        options = dict(o.split("=", 1) for o in name.split()[2::2])
        again = config.from_values(values, {**options, "run.seed": "0"})
        assert again.digest() == trial.runs[0]["recipe_digest"]


def test_the_contest_shows_settings_trials_and_who_wins() -> None:
    clip, rate = settings_of(FLAT)
    names = {trial_of(FLAT, *STARTS[FLAT].at((0, 0))), trial_of(FLAT, clip, rate)}
    runs = {
        FLAT: seeds(FLAT, 0.95, 0.952, 0.954),
        MULTIPLIED: seeds(MULTIPLIED, 0.9, 0.901, 0.902),
    }
    trials = {name: seeds(name, 0.94) for name in names}
    lines = contest("003/equal-mnist-individual", FLAT, runs.get, trials).splitlines()
    flat = next(line for line in lines if f"`{FLAT}`" in line)
    assert f"| {clip:g} | {rate:g} | 1 | 94.00 |" in flat
    assert "95.20 ± 0.20 | 3 | 1.00 | 0.50 |" in flat
    assert "lower (−" in next(line for line in lines if f"`{MULTIPLIED}`" in line)
    adaptive = next(line for line in lines if "adaptive" in line)
    assert "| 0 | not tried | not measured | 0 |" in adaptive
