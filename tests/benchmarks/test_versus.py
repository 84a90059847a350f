"""Verdicts follow from the runs, whichever way they go; sweeps show what was measured."""

from pathlib import Path

import pytest
from accuracy_suite import clip_sweeps, page
from accuracy_suite.clip_sweeps import SWEEPS
from accuracy_suite.page import PageError, Sources, filled
from accuracy_suite.stored import Summary
from accuracy_suite.versus import Versus
from scipy.stats import t
from stored_runs import run, seeds

A, B = "003/short-cifar-bn", "003/short-cifar-bn-flat"


def test_higher_lower_and_not_told_apart() -> None:
    low, high = seeds(A, 0.5, 0.505, 0.51), seeds(B, 0.6, 0.605, 0.61)
    assert Versus(high, low).verdict == "higher"
    assert Versus(low, high).verdict == "lower"
    near = seeds(B, 0.502, 0.509, 0.506)
    assert Versus(low, near).verdict == "not told apart"
    assert Versus(high, low).claim() == "holds here"
    assert Versus(low, high).claim() == "is turned round here"


def test_the_interval_is_welchs() -> None:
    interval = Versus(seeds(A, 0.5, 0.52), seeds(B, 0.6, 0.61, 0.62)).interval
    parts = 2.0 / 2, 1.0 / 3
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 1 + parts[1] ** 2 / 2)
    half = float(t.ppf(0.975, freedom)) * sum(parts) ** 0.5
    assert interval == pytest.approx((-10 - half, -10 + half))


def test_equal_runs_have_an_interval_too() -> None:
    assert Versus(seeds(A, 0.1, 0.1), seeds(B, 0.1, 0.1)).verdict == "not told apart"
    assert Versus(seeds(A, 0.1, 0.1), seeds(B, 0.11, 0.11)).verdict == "lower"


def test_without_runs_there_is_no_verdict() -> None:
    one, older = seeds(A, 0.5), Summary(B, ({**run(B, 0.6), "recipe_digest": "older"},) * 3)
    assert Versus(one, None).text() == "not measured"
    assert Versus(one, older).verdict == "not measured"
    assert Versus(one, seeds(B, 0.6, 0.61)).verdict == "one run"
    assert "too few runs" in Versus(one, seeds(B, 0.6, 0.61)).text()


def test_the_text_says_whether_both_cost_the_same() -> None:
    equal = Versus(seeds(A, 0.5, 0.505), seeds(B, 0.6, 0.605)).text()
    assert "both at proven ε = 1.00" in equal and "**lower**" in equal
    unequal = Versus(
        seeds(A, 0.5, 0.505), seeds(B, 0.6, 0.605, proven={"add-or-remove-one": 3.0})
    ).text()
    assert "1.00 and 3.00, **not equal**" in unequal
    nothing = seeds(A, 0.5, relation=None), seeds(B, 0.6, relation=None)
    assert "no proven ε" in Versus(*nothing).text()


def test_placeholders_ask_for_verdicts(tmp_path: Path) -> None:
    own = {A: seeds(A, 0.5, 0.505), B: seeds(B, 0.6, 0.605)}
    sources = Sources(own, {}, tmp_path)
    assert filled(f"{{claim:{A}:{B}}}", sources) == "is turned round here"
    assert "**higher**" in filled(f"{{versus:{B}:{A}}}", sources)
    assert filled(f"{{versus:{A}:003/short-cifar}}", sources) == "not measured"
    assert filled("{chart:x.svg:A title}", sources) == "A title: not drawn."
    with pytest.raises(PageError, match="cannot be filled in"):
        filled("{sweep:figure99}", sources)


def test_a_planned_epsilon_is_that_of_the_proof() -> None:
    assert page.planned("003/fig12-mnist", "proven") == "2.09"
    assert page.planned("003/fig12-mnist", "claimed") == "2.09"
    assert page.planned("003/short-resnet18-bn", "proven") == "∞"


def test_the_page_of_paper_003_can_be_written_with_what_is_stored() -> None:
    text = page.text_of("batch-clipping")
    assert "{" not in text
    assert "Does B.2, or grouping, or both, beat plain DP-SGD?" in text


def test_a_sweep_keeps_the_noise_and_so_the_budget() -> None:
    for sweep in SWEEPS.values():
        recipes = [page.recipe_of(name) for name in sweep.names]
        assert len({recipe.privacy.noise for recipe in recipes}) == 1
        assert all(recipe.data.holdout for recipe in recipes)
        assert {recipe.method.clip for recipe in recipes} == set(sweep.clips)
        assert {recipe.method.clipping for recipe in recipes} == {"flat", "adaptive-layerwise"}


def test_a_sweep_as_table_and_chart(tmp_path: Path) -> None:
    sweep = SWEEPS["figure9"]
    runs = {
        sweep.name(line, clip): seeds(sweep.name(line, clip), low + lift, low + lift + 0.02)
        for low, clip in zip((0.2, 0.21), sweep.clips, strict=False)
        for line, lift in (("layer by layer", 0.0), ("whole gradient", 0.05))
    }
    lines = clip_sweeps.table(sweep, runs).splitlines()
    assert lines[2].startswith(f"| {sweep.clips[0]:g} | 21.00 ± 1.41 | 26.00 ± 1.41 |")
    assert lines[2].endswith("| 1.00 | 0.50 |")
    assert lines[4] == f"| {sweep.clips[2]:g} | not measured | not measured | none | none |"
    assert f"whole gradient: best at C = {sweep.clips[1]:g} (27.00)." in lines[-1]
    chart = tmp_path / "chart.svg"
    clip_sweeps.draw(runs, chart)
    first = chart.read_bytes()
    clip_sweeps.draw(runs, chart)
    assert chart.read_bytes() == first
    for words in (b"clip norm C", b"whole gradient", b"best C"):
        assert words in first
