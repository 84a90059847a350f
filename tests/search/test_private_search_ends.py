"""Private searches that are interrupted, fail or draw no run: charged once, and nothing is said."""

from pathlib import Path
from typing import Any

import pytest
from private_runs import TRIED, charges

from tacit.config import Recipe
from tacit.errors import ArgumentError, BudgetError, RunError
from tacit.evaluate import Evaluation
from tacit.noise.source import RandomSource
from tacit.privacy.selection import RunCount
from tacit.rundir import RunDir
from tacit.sweep import Training
from tacit.tune import tune_privately


def test_a_search_that_is_interrupted_goes_on_with_the_same_runs_and_one_charge(
    recipe: Recipe, made: list[Training], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = tune_privately(recipe, TRIED, out=tmp_path / "whole", runs=5)
    planned = [(t.name, t.recipe.digest()) for t in made]
    made.clear()
    watched = Training.do

    def interrupted(self: Training, *rest: Any) -> None:
        assert len(charges(tmp_path / "cut")) == 1, "charged before the first run"
        if len(made) == 1:
            raise KeyboardInterrupt
        watched(self, *rest)

    monkeypatch.setattr(Training, "do", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune_privately(recipe, TRIED, out=tmp_path / "cut", runs=5)
    assert not (tmp_path / "cut" / "weights.safetensors").exists()
    monkeypatch.setattr(Training, "do", watched)
    again = tune_privately(recipe, TRIED, out=tmp_path / "cut", runs=5)
    assert [(t.name, t.recipe.digest()) for t in made] == planned
    assert len(charges(tmp_path / "cut")) == 1
    assert again.settings == whole.settings
    released = [tmp_path / name / "weights.safetensors" for name in ("whole", "cut")]
    assert released[0].read_bytes() == released[1].read_bytes()
    assert tune_privately(recipe, TRIED, out=tmp_path / "cut", runs=5).settings == whole.settings
    with pytest.raises(RunError, match="differs in"):
        tune_privately(recipe, TRIED, out=tmp_path / "cut", runs=6)


def test_a_score_that_comes_out_otherwise_after_a_crash_gets_no_noise(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def search() -> None:
        plain = recipe.with_settings(holdout=0)
        tune_privately(plain, TRIED, out=out, runs=3, score="charged", score_noise=9.0)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("tacit.private_search._released", killed)
        with pytest.raises(KeyboardInterrupt):
            search()
    with monkeypatch.context() as patch:
        patch.setattr("tacit.private_search.evaluate", lambda *_: Evaluation(0.25, 0.5, None))
        with pytest.raises(RunError, match="scores otherwise"):
            search()
    search()
    assert len(charges(out)) == 1 and RunDir(out).finished


def test_an_unfinished_search_cannot_be_changed_or_drawn_again(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stop(self: Training, *rest: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Training, "do", stop)
        tune_privately(recipe, TRIED, out=tmp_path / "out", runs=5)
    with pytest.raises(RunError, match="differs in"):
        tune_privately(recipe, TRIED, out=tmp_path / "out", runs=6)
    with pytest.raises(RunError, match="differs in"):
        tune_privately(recipe, {**TRIED, "method.clip": "0.5"}, out=tmp_path / "out", runs=5)
    run = RunDir(tmp_path / "out")
    run.save_key(RandomSource.from_seed(99), 0)
    with pytest.raises(RunError, match="key"):
        tune_privately(recipe, TRIED, out=tmp_path / "out", runs=5)
    (run.private / "key.json").unlink()
    with pytest.raises(RunError, match="key"):
        tune_privately(recipe, TRIED, out=tmp_path / "out", runs=5)


def test_a_failure_does_not_count_the_runs(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(self: Training, *rest: Any) -> None:
        raise ArgumentError("no luck")

    monkeypatch.setattr(Training, "do", fail)
    with pytest.raises(RunError) as failed:
        tune_privately(recipe, TRIED, out=tmp_path / "out", runs=5)
    expected = "a run of the search failed, and so must the search: no luck"
    assert str(failed.value) == expected


def test_no_run_at_all_spends_the_budget_and_says_so(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(RunCount, "drawn", lambda self, uniform: 0)
    for _ in range(2):
        with pytest.raises(BudgetError, match="0"):
            tune_privately(recipe, TRIED, out=tmp_path / "out", runs=2, law="poisson")
    assert len(charges(tmp_path / "out")) == 1
