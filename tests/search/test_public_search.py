"""Search on public records: free, adaptive, resumable, and one run on the private ones."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.cli import main
from tacit.config import Recipe
from tacit.errors import ArgumentError
from tacit.privacy import ledger
from tacit.sweep import Training
from tacit.tune import tune_on_public

pytest.importorskip("optuna", reason="optuna is in requirements.txt, but not in this environment")

TRIED = {"training.learning_rate": "0.001..3", "training.optimizer": "sgd,adam"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for seed, name in ((3, "private"), (4, "public")):
        x = torch.randn(250, 5, generator=torch.Generator().manual_seed(seed))
        np.savez(folder / f"{name}.npz", x=x.numpy(), y=(x[:, 0] > 0).long().numpy())
    return folder


@pytest.fixture
def recipe(folder: Path) -> Recipe:
    return Recipe.parse(
        {
            "data": {"name": str(folder / "private.npz"), "options": {"classes": 2}},
            "model": {"name": "linear"},
            "privacy": {"epsilon": 3.0},
            "training": {"epochs": 3, "batch_size": 200},
            "run": {"seed": 2, "evaluate_every": 100},
        }
    )


def test_trials_touch_public_records_alone_and_one_run_the_private_ones(
    recipe: Recipe, folder: Path, made: list[Training], tmp_path: Path
) -> None:
    public = str(folder / "public.npz")
    tuned = tune_on_public(recipe, TRIED, public, out=tmp_path / "out", trials=3)
    assert [t.recipe.data.name for t in made] == [public] * 3
    assert all(t.recipe.data.holdout == 50 for t in made)
    assert all(t.recipe.privacy.epsilon == 3.0 for t in made)
    assert len(tuned.tried) == 3
    best = max(accuracy or 0.0 for _, accuracy in tuned.tried)
    assert (tuned.settings, best) in tuned.tried
    run = tmp_path / "out" / "run"
    promise = ledger.read(run / "ledger.jsonl")[0].body
    assert promise["records"] == 250 and tuned.result.epsilon <= 3.0
    tuning = tuned.result.certificate["tuning"]
    assert tuning.startswith("free of charge: 3 settings") and "public.npz" in tuning


def test_the_same_command_goes_on_and_trains_nothing_twice(
    recipe: Recipe, folder: Path, made: list[Training], tmp_path: Path
) -> None:
    public, out = str(folder / "public.npz"), tmp_path / "out"
    first = tune_on_public(recipe, TRIED, public, out=out, trials=2)
    assert len(made) == 2
    again = tune_on_public(recipe, TRIED, public, out=out, trials=2)
    assert len(made) == 2 and again.settings == first.settings
    with pytest.raises(ArgumentError, match="second release"):
        tune_on_public(recipe, TRIED, public, out=out, trials=3)
    with pytest.raises(ArgumentError, match="another search"):
        tune_on_public(recipe, {"method.clip": "1,2"}, public, out=out, trials=2)


def test_later_trials_learn_from_earlier_ones() -> None:
    from tacit.public_search import Trial, _proposed
    from tacit.search_space import Space

    space = Space.parse({"training.learning_rate": "0.001..1"})
    done = [
        Trial({"training.learning_rate": rate}, None, -abs(np.log(rate / 0.5)), Path())
        for rate in np.geomspace(0.001, 1, 25).round(5).tolist()
    ]
    rates = [_proposed(space, done[:n], 1)[0]["training.learning_rate"] for n in range(15, 26)]
    assert np.median(rates) > 0.1
    assert _proposed(space, done, 2) == _proposed(space, done, 2)


def test_the_command_shows_every_trial(
    recipe: Recipe, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.as_toml())
    given = ["tune", str(path), "--on", "public", "--public-data", str(folder / "public.npz")]
    given += ["--trials", "2", "--try", "training.learning_rate=0.01,1", "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        main(given)
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert "accuracy on public records" in shown and "free of charge" in " ".join(shown.split())
    with pytest.raises(SystemExit):
        main([*given, "--json"])
    assert len(json.loads(capsys.readouterr().out)["tried"]) == 2


def test_the_private_records_themselves_are_no_public_data(
    recipe: Recipe, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match="on which the recipe itself trains"):
        tune_on_public(recipe, TRIED, recipe.data.name, out=tmp_path / "out")
    with pytest.raises(ArgumentError, match="trials"):
        tune_on_public(recipe, TRIED, str(folder / "public.npz"), out=tmp_path / "o", trials=0)
