"""Figures of paper 000 and their words, from made-up runs."""

from pathlib import Path
from typing import Any

import pytest
from accuracy_suite.stored import Summary
from sanitization_suite.charts import charts, width_curves
from sanitization_suite.runs import (
    FIGURES,
    FIXED,
    FULL_FIXED,
    FULL_MOVING,
    LONG,
    MOVING,
    RECORDS,
    SHORT,
    WIDTHS,
    FullRun,
    Row,
    Trained,
    accuracy_at,
    add,
    by_width,
    missing,
    stored,
)
from sanitization_suite.section import section

from tacit.method_sections import SanitizationRecipe


def row(run: Trained, **more: Any) -> Row:
    """A run that gains a point every epoch, from a start that tells it from the others."""
    full = isinstance(run, FullRun)
    if isinstance(run, FullRun):
        epochs, start, follow = range(1, 21), 0.5 + 0.01 * (run == FULL_MOVING), 0.0
    else:
        epochs, follow = range(1, run.epochs + 1), run.follow
        start = 0.2 + run.width / 1000 + follow / 10 - run.noise / 100
    return {
        "run": run.name,
        "recipe_digest": run.recipe.digest(),
        "records": RECORDS,
        "batch_size": 20,
        "evaluated_on": "4,000 records: records held out of the training set",
        "evaluations": [[float(e), start + e / 100] for e in epochs if full or e % 2 == 0],
        "claimed": [0.5 + e / 50 for e in epochs],
        "threshold": [(follow or 0.5) * (1 + e / 10) for e in epochs],
        "norm": [1 + e / 10 for e in epochs],
        "spread": [3.0 + (e == 11) for e in epochs],
        "delta": 1e-5,
        "training_seconds": 60.0,
        "versions": {},
    } | more


@pytest.fixture
def rows() -> list[Row]:
    return [row(run) for run in dict.fromkeys(r for runs in FIGURES.values() for r in runs)]


def test_every_run_is_a_recipe_of_the_paper_on_part_of_the_records() -> None:
    for run in dict.fromkeys(run for runs in FIGURES.values() for run in runs):
        recipe = run.recipe
        assert isinstance(recipe.method, SanitizationRecipe)
        assert recipe.method.guarantee == "paper"
        if isinstance(run, FullRun):
            assert recipe.training.epochs == 100 and not recipe.data.holdout
            continue
        assert recipe.training.epochs == run.epochs and recipe.model.width == run.width
        whole = {"mnist": 60_000, "cifar-10": 50_000}[run.data]
        assert whole - recipe.data.holdout - recipe.data.public == RECORDS
        assert recipe.data.holdout > 0


def test_a_longer_run_serves_as_the_shorter_one() -> None:
    assert FIXED in by_width("cifar-10") and MOVING[2] in by_width("cifar-10", 0.1)
    assert all(run.epochs == SHORT for run in by_width("mnist"))
    assert accuracy_at(row(FIXED), SHORT) == pytest.approx(100 * (0.23 + SHORT / 100))
    with pytest.raises(ValueError, match="not evaluated after 7 epochs"):
        accuracy_at(row(FIXED), 7)


def test_stored_runs_are_kept_and_changed_recipes_are_run_again(tmp_path: Path) -> None:
    assert missing(["6", "8"], stored(tmp_path)) == [FULL_FIXED, FIXED, *MOVING]
    add(row(FULL_FIXED), tmp_path)
    add(row(FIXED), tmp_path)
    add(row(MOVING[0], recipe_digest="an older one"), tmp_path)
    assert missing(["6"], stored(tmp_path)) == []
    assert missing(["4"], stored(tmp_path)) == [FULL_MOVING]
    assert missing(["8"], stored(tmp_path)) == list(MOVING)
    add(row(MOVING[0]), tmp_path)
    assert missing(["8"], stored(tmp_path)) == list(MOVING[1:])
    assert len(stored(tmp_path)) == 3


def test_figures_name_their_axes_and_scale_and_are_the_same_every_time(rows: list[Row]) -> None:
    drawn = {chart.name: chart.svg() for chart in charts(rows)}
    assert list(drawn) == [f"sanitization-figure{number}" for number in (4, 6, 8, 11, 13, 14)]
    assert drawn == {chart.name: chart.svg() for chart in charts(rows)}
    for svg in drawn.values():
        assert f"{RECORDS:,} records, batch 20" in svg and "no guarantee" in svg
    assert "Claimed ε (no guarantee)" in drawn["sanitization-figure4"]
    assert "moving C" in drawn["sanitization-figure4"]
    assert "window 20, slope 1.2e-05" in drawn["sanitization-figure6"]
    assert "Clipping threshold C" in drawn["sanitization-figure8"]
    assert drawn["sanitization-figure11"].count("Width n of the layer") == 2
    assert "t, where C = t·‖W‖" in drawn["sanitization-figure14"]
    assert not any("roven" in svg for svg in drawn.values())


def test_figures_need_only_the_runs_that_are_there(rows: list[Row]) -> None:
    some = [each for each in rows if each["run"] in {FULL_FIXED.name, FIXED.name, MOVING[3].name}]
    assert [chart.name[-2:] for chart in charts(some)] == ["e4", "e6", "e8", "11", "13", "14"]
    assert charts([]) == []


def test_words_come_from_the_runs(tmp_path: Path, rows: list[Row]) -> None:
    assert "have not been made yet" in section(tmp_path)
    for each in rows:
        add(each, tmp_path)
    text = section(tmp_path)
    assert text.count(".svg)") == 6 and "](sanitization-figures.json)" in text
    assert "C fixed 60.0 and 70.0 %; C moving 61.0 and 71.0 %" in text
    assert "raise 1, the first after epoch 12, with 62.0 % where the whole run ends with" in text
    assert f"C = 0.2·‖W‖ from 0.22 to {0.2 + LONG / 50:.2f}" in text
    assert f"CIFAR-10 is best at n = 100 with {29 + SHORT}.0 %, the largest" in text
    assert f"ahead at {len(WIDTHS)} of {len(WIDTHS)} widths" in text
    assert f"t = 0.02 {23.2 + LONG // 2:.1f} and {23.2 + LONG:.1f} %" in text
    parts = len(rows) - 2
    assert "so up to 0.8 points" in text and f"{parts} runs in {parts} minutes" in text


def test_more_noise_is_a_curve_of_its_own(rows: list[Row]) -> None:
    curves = dict(width_curves(rows))
    assert list(curves) == ["fixed C, noise 1", "C = 0.1·‖W‖, noise 1", "C = 0.1·‖W‖, noise 2"]
    one, two = curves["C = 0.1·‖W‖, noise 1"], curves["C = 0.1·‖W‖, noise 2"]
    assert [a - b for (_, a), (_, b) in zip(one, two, strict=True)] == pytest.approx(
        [1.0] * len(WIDTHS)
    )


def test_stops_are_summed_up_over_the_seeds() -> None:
    runs = tuple({"stopped": {"step": step, "claimed": step / 1e4}} for step in (7500, 10000))
    found = Summary("a recipe", runs)
    assert found.stopped_after == 8750 and found.claimed_at_stop == 1.0
    with pytest.raises(TypeError):
        _ = Summary("another", ({"stopped": None},)).stopped_after
