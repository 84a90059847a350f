"""The page is whole, safe, says what the run's files say, and needs nothing else."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from html_page import Page
from made_runs import Json, certificate, metrics, page, write_run

from tacit.privacy.ledger import Ledger
from tacit.report import write_report

_EVIL = "<script>alert('1')</script>\"&"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page(tmp_path_factory.mktemp("run"), certificate(), metrics())


def test_a_full_run(found: Page, tmp_path: Path) -> None:
    assert found.source.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert found.tags.count("svg") == found.tags.count("figure") == 5
    assert found.tags.count("h1") == found.tags.count("main") == 1
    for text in (
        *(
            "Proven (ε\u00a0=\u00a03.00, δ\u00a0=\u00a01e-5)",
            "4.88",
            "2.94",
            "0.83",
            "95% confidence",
            "97.31%",
        ),
        *("0.1433", "5 min 12 s", "Stopped early.", "Several records of one person.", "20.08"),
        *("tacit train recipe.toml --out NEW-RUN", "epsilon = 3.0", "As text.", "b41d" * 16),
        *("budget ε = 3.00", "Accuracy (%)", "Training step", "Epoch", "Predicted class"),
    ):
        assert text in found.text, text
    assert "No privacy guarantee" not in found.text
    assert "Do not rely" not in found.text
    assert page(tmp_path, certificate(), metrics()).source == found.source


def test_ids_are_unique_and_every_reference_resolves(found: Page) -> None:
    assert len(found.ids) == len(set(found.ids))
    used = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"|labelledby="([^"]+)"', found.source)
    assert used
    assert {"".join(groups) for groups in used} <= set(found.ids)


def test_nothing_is_loaded_and_nothing_runs(found: Page) -> None:
    assert not {"script", "iframe", "object", "embed", "base"} & set(found.tags)
    for tag, name, value in found.attributes:
        assert not name.startswith("on"), f"{name} on {tag}"
        if name.split(":")[-1] in {"href", "src", "srcset", "action", "data"}:
            assert value.startswith(("#", "data:")), f"{tag} {name}={value[:40]}"
    style = found.source.partition("<style>")[2].partition("</style>")[0]
    assert "@import" not in style
    assert "url(" not in style
    assert "default-src 'none'" in found.source


def test_every_text_is_escaped(tmp_path: Path) -> None:
    evil = certificate(
        **dict.fromkeys(("title", "verdict", "method", "sampling", "proof", "other"), _EVIL),
        **{key: [_EVIL] for key in ("released", "assumptions", "not_covered", "warnings")},
        guarantee={"epsilon": 1, "delta": 1e-5, "relation": _EVIL, "unit": _EVIL},
        proven={_EVIL: 1},
        claimed={"epsilon": 1, "source": _EVIL},
        audited={"epsilon": 0.5, "attack": _EVIL},
        versions={_EVIL: _EVIL},
    )
    numbers = metrics(evaluated_on=_EVIL, model=_EVIL, data=_EVIL)
    numbers["final"]["class_names"] = [_EVIL, "$\\frac{$", "]]>\x00\ud800<!--"]
    numbers[_EVIL] = _EVIL
    found = page(tmp_path, evil, numbers, text=f"\n</pre>{_EVIL}")
    assert "script" not in found.tags
    assert "<script" not in found.source
    assert "<!--" not in found.source.replace("<!DOCTYPE", "")
    assert "\n</pre>" + _EVIL in found.text


def test_everything_but_the_title_may_be_missing(tmp_path: Path) -> None:
    found = page(tmp_path, {"title": "Bare"}, {})
    assert "svg" not in found.tags
    for text in ("No privacy guarantee", "not claimed", "not audited yet", "∞"):
        assert text in found.text
    full = certificate()
    for key in set(full) - {"title"}:
        without = {name: value for name, value in full.items() if name != key}
        assert full["title"] in page(tmp_path, without, {}).text


def test_null_everywhere(tmp_path: Path) -> None:
    nothing = dict.fromkeys(certificate()) | {"title": "Empty"}
    assert "Empty" in page(tmp_path, nothing, dict.fromkeys(metrics())).text
    row = dict.fromkeys(("step", "epoch", "seconds", "epsilon", "loss", "accuracy"))
    empty = page(tmp_path, certificate(), {"evaluations": [row, {}], "final": {"accuracy": None}})
    assert "None" not in empty.text


def test_unknown_fields_are_shown(tmp_path: Path) -> None:
    odd = certificate(later_field={"deep": ["kept"]}, audited={"epsilon": 0.1, "runs": 4242})
    found = page(tmp_path, odd, {"energy": "12 kWh"})
    for text in ("Later field", "kept", "Audited runs", "4,242", "Energy", "12 kWh"):
        assert text in found.text


def test_people_read_words_not_keys(tmp_path: Path) -> None:
    known = certificate(
        **dict.fromkeys(("budget", "records", "expected_batch_size", "sensitivity_squared"), 1),
        **{"steps": 18, "charges": 5, "mechanism": "tree", "clipping": "per record"},
        spent_by_now={"epsilon": 1.2341, "name": "spent at stop (ex post)"},
    )
    known["guarantee"]["meaning"] = "one training record is present or absent"
    found = page(tmp_path, known, {})
    text = " ".join(re.sub(r"<[^>]+>", " ", found.source.partition("<main>")[2]).split())
    for key in ("spent_by_now", "guarantee.meaning", "sensitivity_squared", "expected_batch_size"):
        assert key not in text
    for words in ("Steps planned 18", "Steps taken and paid for 5", "ε = 1.24 for the steps taken"):
        assert words in text, words
    assert "Also recorded" not in text


def test_the_other_relation_stands_beside_the_number(found: Page) -> None:
    card = found.source.partition('<article class="card main">')[2].partition("</article>")[0]
    assert "ε\u00a0=\u00a04.88 if one training record is replaced by another (replace-one)" in card


@pytest.mark.parametrize(
    ("claimed", "words"),
    [
        (2.9991, "the same as what is proven, up to rounding"),
        (2.98, "less than what is proven"),
        (3.2, "more than what is proven"),
    ],
)
def test_a_claim_is_compared_as_it_is_shown(tmp_path: Path, claimed: float, words: str) -> None:
    found = page(tmp_path, certificate(claimed={"epsilon": claimed, "source": "a paper"}), {})
    assert words in found.text


def test_the_caption_says_how_many_points_are_drawn(found: Page) -> None:
    assert "Proven ε at 7 points of the training at δ\u00a0=\u00a01e-5." in found.text


def test_the_footer_says_what_no_ledger_covers(found: Page) -> None:
    assert "The ledger covers all of these but metrics.json" in found.text


def test_a_run_without_privacy_needs_no_certificate(tmp_path: Path) -> None:
    run = write_run(tmp_path, certificate(), metrics(classes=0))
    (run / "certificate.json").unlink()
    (run / "certificate.txt").unlink()
    promise = {
        **{"title": "Unprotected", "method": "plain", "relation": "add-or-remove-one"},
        **{"steps": 1, "delta": 1e-5, "claimed": None, "versions": {"tacit": "0"}},
    }
    Ledger.create(run / "ledger.jsonl", {**promise, "planned": {"non-private": True}}).close()
    found = Page(write_report(run).read_text("utf-8"))
    for words in ("Unprotected", "No privacy guarantee", "no certificate was issued", "∞"):
        assert words in found.text
    assert "certificate.json" not in found.text and "Accountant" not in found.text


@pytest.mark.parametrize(
    "guarantee",
    [
        None,
        {"epsilon": math.inf, "delta": 1e-5},
        {"epsilon": None, "delta": 1e-5},
        {"epsilon": math.nan, "delta": 1e-5},
        {"epsilon": -1.0, "delta": 1e-5},
        {"epsilon": 1.0, "delta": 1.0},
    ],
)
def test_no_guarantee_means_a_banner_and_no_epsilon_plots(
    tmp_path: Path, guarantee: Json | None
) -> None:
    found = page(tmp_path, certificate(guarantee=guarantee), metrics(classes=0))
    assert 'class="banner"' in found.source
    assert "No privacy guarantee" in found.text
    assert "Accuracy against proven ε" not in found.text
    assert "Privacy spent" not in found.text
    assert found.tags.count("svg") == 2


def test_a_missing_verdict_is_made_from_the_guarantee(tmp_path: Path) -> None:
    found = page(tmp_path, certificate(verdict=None), {})
    expected = "Proven (ε_=_3.00, δ_=_1e-5) for any one training record, add-or-remove-one"
    assert expected.replace("_", "\u00a0") in found.text


@pytest.mark.parametrize(
    ("changes", "curve"),
    [
        ({"audited": {"epsilon": 3.2}}, []),
        ({"proven": {"add-or-remove-one": 3.5}}, []),
        ({"verdict": "Proven (ε = 2.99, δ = 1e-5)"}, []),
        ({"guarantee": {"epsilon": 2.9994}}, []),
        ({}, [[1, 3.3]]),
    ],
)
def test_contradictions_are_raised(tmp_path: Path, changes: Json, curve: list[Any]) -> None:
    found = page(tmp_path, certificate(**changes), {"epsilon_curve": curve, "delta": 1e-5})
    assert "Do not rely on this yet" in found.text


def test_a_budget_for_another_delta_is_not_drawn(tmp_path: Path) -> None:
    found = page(tmp_path, certificate(), metrics(1, 0, delta=1e-6, epsilon_curve=[[1, 9.0]]))
    assert "budget ε" not in found.text
    assert "without its budget" in found.text
    assert "at δ\u00a0=\u00a01e-6" in found.text
    assert "Do not rely" not in found.text


@pytest.mark.parametrize(
    ("evaluations", "classes", "figures"),
    [(0, 2, 2), (1, 1, 5), (1, 2, 5), (70, 20, 5), (5, 100, 5)],
)
def test_few_and_many(tmp_path: Path, evaluations: int, classes: int, figures: int) -> None:
    found = page(tmp_path, certificate(), metrics(evaluations, classes))
    assert found.tags.count("svg") == figures
    assert len(found.ids) == len(set(found.ids))


def test_values_that_are_not_finite_leave_gaps(tmp_path: Path) -> None:
    numbers = metrics()
    for row, bad in zip(numbers["evaluations"], (math.nan, math.inf), strict=False):
        row.update(loss=bad, accuracy=bad, epsilon=bad)
    numbers["epsilon_curve"][0][1] = None
    found = page(tmp_path, certificate(), numbers)
    assert "2 of 6 points had no finite value and are left out." in found.text
    empty = metrics(3)
    for row in empty["evaluations"]:
        row.update(loss=math.nan, accuracy=None, epoch=None)
    assert page(tmp_path, certificate(), empty).tags.count("svg") == 2


def test_no_torch_and_no_pyplot() -> None:
    code = (
        "import sys, tacit.report; "
        "print({'torch', 'matplotlib.pyplot'} & set(sys.modules) or 'clean')"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "clean"
