"""Private selection: charged once and ahead, nothing released but the best run."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from private_runs import RECORDS, TRIED, charges

from tacit import private_search, verify
from tacit.cli import main
from tacit.config import Recipe
from tacit.errors import ArgumentError, LedgerError, NoProofError
from tacit.noise.source import RandomSource
from tacit.privacy import accountants, events, ledger
from tacit.privacy.relations import Relation
from tacit.privacy.selection import RunCount, candidates_of
from tacit.rundir import RunDir
from tacit.sweep import Training
from tacit.tune import Tuned, tune_privately


def test_a_search_releases_one_run_within_the_budget(
    recipe: Recipe, made: list[Training], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    tuned = tune_privately(recipe, TRIED, out=out, runs=5)
    assert 2.9 < tuned.result.epsilon <= 3.0
    assert len(made) > 1 and tuned.tried == ()
    charged = charges(out)
    assert len(charged) == 1
    event = events.from_json(charged[0]["event"])
    assert (event.mean, event.shape) == (5.0, 1.0)
    assert accountants.epsilon(event, 1e-5) == pytest.approx(tuned.result.epsilon, abs=1e-3)
    assert not (out / "private").exists()
    files = {path.name for path in out.iterdir()}
    assert files == {
        *("recipe.toml", "ledger.jsonl", "metrics.json", "weights.safetensors"),
        *("certificate.json", "certificate.txt", "report.html"),
    }
    assert len(verify.check(out).checked) == 4


def test_the_certificate_counts_the_runs_in_expectation_alone(
    recipe: Recipe, made: list[Training], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    tuned = tune_privately(recipe, TRIED, out=out, runs=7, law="logarithmic")
    issued = tuned.result.certificate
    assert issued["expected_runs"] == 7 and issued["settings_to_try"] == 6
    assert issued["tuning"].startswith("counted: ") and "7 runs in expectation" in issued["tuning"]
    assert issued["accountant"] == "rdp" and "selection.md" in issued["proof"]
    assert any("number of runs" in text for text in issued["not_covered"])
    assert issued["budget"] == 3.0 and issued["claimed"] is None
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["epsilon_curve"] == [[step, tuned.result.epsilon] for step in (1, 3)]
    assert {e["epsilon"] for e in metrics["evaluations"]} == {tuned.result.epsilon}


def test_the_best_run_is_the_one_that_is_released(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[tuple[float, bytes, bytes]] = []
    original = private_search._score

    def score(wanted: Any, training: Training, *rest: Any) -> float:
        found = original(wanted, training, *rest)
        run = RunDir(training.out)
        seen.append((found, run.weights.read_bytes(), run.recipe.read_bytes()))
        return found

    monkeypatch.setattr(private_search, "_score", score)
    tune_privately(recipe, TRIED, out=tmp_path / "out", runs=6)
    best = max(seen, key=lambda each: each[0])
    assert len({each[0] for each in seen}) > 1
    assert (tmp_path / "out" / "weights.safetensors").read_bytes() == best[1]
    assert (tmp_path / "out" / "recipe.toml").read_bytes() == best[2]


def test_a_charged_score_is_part_of_every_run_and_needs_no_public_records(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scores: list[float] = []
    original = private_search._score

    def score(*given: Any) -> float:
        scores.append(original(*given))
        return scores[-1]

    monkeypatch.setattr(private_search, "_score", score)
    plain = recipe.with_settings(holdout=0)
    out = tmp_path / "out"
    with pytest.raises(ArgumentError, match="holdout"):
        tune_privately(plain, TRIED, out=out, runs=4)
    assert not out.exists()
    tuned = tune_privately(plain, TRIED, out=out, runs=4, score="charged", score_noise=9.0)
    assert tuned.result.epsilon <= 3.0
    event = events.from_json(charges(out)[0]["event"])
    for run in candidates_of(event):
        assert events.leaves(run)[events.bounded_gaussian(9.0)] == 1
    right = np.array(scores) * RECORDS
    assert np.all(np.abs(right - np.round(right)) > 1e-6), "no count is used without noise"
    assert "charged" in tuned.result.certificate["tuning"]


def test_scores_have_the_noise_that_is_charged(recipe: Recipe, tmp_path: Path) -> None:
    from tacit.train import prepare, train

    ready = prepare(recipe)
    out = tmp_path / "run"
    train(recipe, out=out)
    wanted = private_search.PrivateSearch(ready, ({},), RunCount(2.0, 1.0), 9.0)
    training = Training("run", "search", ready.recipe, out)
    source = RandomSource.from_seed(8)
    found = np.array([private_search._score(wanted, training, i, source) for i in range(150)])
    assert np.std(found * len(ready.train)) == pytest.approx(9.0, rel=0.2)


def test_candidates_that_release_more_get_more_noise(recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tune_privately(recipe, {"training.epochs": "1,4"}, out=out, runs=3)
    listed = ledger.read(out / "ledger.jsonl")[0].body["candidates"]
    noise = {each["training.epochs"]: each["privacy.noise"] for each in listed}
    assert noise[4] == pytest.approx(2 * noise[1], rel=1e-3)


def test_the_number_of_runs_and_the_candidates_follow_the_law(
    recipe: Recipe, tmp_path: Path
) -> None:
    law, recipes = RunCount(4.0, 1.0), tuple(recipe.with_settings(clip=c) for c in (0.1, 1.0))
    found = [
        private_search._trainings(law, recipes, RunDir(tmp_path), RandomSource.from_seed(s), False)
        for s in range(600)
    ]
    counts = np.array([len(each) for each in found])
    assert counts.min() == 1
    assert np.mean(counts) == pytest.approx(4.0, abs=0.6)
    assert np.mean(counts == 1) == pytest.approx(0.25, abs=0.06)
    clips = [t.recipe.method.clip for t in itertools.chain(*found)]
    assert np.mean(np.array(clips) == 1.0) == pytest.approx(0.5, abs=0.05)


def test_what_no_proof_covers_is_refused_and_leaves_nothing(recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "out"
    small = recipe.with_settings(batch_size=20, relation=Relation.REPLACE_ONE.value)
    with pytest.raises(NoProofError, match="best of several"):
        tune_privately(small, TRIED, out=out)
    with pytest.raises(ArgumentError, match="plain"):
        tune_privately(recipe.with_settings(method="plain"), {"training.epochs": "1,2"}, out=out)
    with pytest.raises(ArgumentError, match="epsilon"):
        tune_privately(recipe.with_settings(noise=1.0), TRIED, out=out)
    with pytest.raises(ArgumentError, match="law"):
        tune_privately(recipe, TRIED, out=out, law="uniform")
    with pytest.raises(ArgumentError, match="score_noise"):
        tune_privately(recipe, TRIED, out=out, score_noise=3.0)
    assert not out.exists()


def test_a_released_recipe_that_was_changed_is_noticed(recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tune_privately(recipe, TRIED, out=out, runs=2)
    text = (out / "recipe.toml").read_text()
    (out / "recipe.toml").write_text(text.replace("epochs = 3.0", "epochs = 4.0"))
    with pytest.raises(LedgerError, match="not the recipe"):
        verify.check(out)


def test_the_command_shows_the_chosen_settings_and_nothing_of_the_other_runs(
    recipe: Recipe,
    made: list[Training],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.with_settings(seed=2).as_toml())
    given = ["tune", str(path), "--on", "private", "--runs", "5", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        main([*given, "--try", "training.learning_rate=0.1,1,3", "--epsilon", "2"])
    shown = capsys.readouterr()
    assert ended.value.code == 0 and len(made) > 1
    assert "chosen" in shown.out and "training.learning_rate" in shown.out
    text = " ".join((shown.out + shown.err).split())
    assert "5 runs are expected" in text and "5 runs in expectation" in text
    for training in made:
        assert training.name not in text
    assert f"{len(made)} runs" not in text and f"{len(made)} of" not in text


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        (["--try", "method.clp=1,2"], "clp"),
        (["--try", "method.clip=2..1"], "second bound"),
        (["--try", "method.clip=1,2", "--law", "uniform"], "law"),
        (["--try", "method.clip=1,2", "--set", "data.holdout=0"], "holdout"),
    ],
)
def test_the_command_says_nothing_of_a_search_that_it_refuses(
    given: list[str],
    refusal: str,
    recipe: Recipe,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.as_toml())
    with pytest.raises(SystemExit) as ended:
        main(["tune", str(path), "--on", "private", "--out", str(tmp_path / "out"), *given])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert refusal in said and "searching" not in said


def test_as_json_holds_the_run_and_its_settings(recipe: Recipe, tmp_path: Path) -> None:
    tuned = tune_privately(recipe, TRIED, out=tmp_path / "out", runs=2)
    assert isinstance(tuned, Tuned)
    values = tuned.as_json()
    assert values["run"] == str(tmp_path / "out") and set(values["settings"]) == set(TRIED)
