"""`tacit audit` as a person or a program uses it."""

import json
from pathlib import Path

import numpy as np
import pytest

from tacit.audit import faults
from tacit.audit.protocol import Played
from tacit.audit.run import Audit
from tacit.audit.scores import Scores
from tacit.audit.verdict import conclude
from tacit.cli import main
from tacit.commands import audit as command
from tacit.privacy import events
from tacit.privacy.relations import Relation

QUICK = "--set training.epochs=1 --set training.batch_size=200 --canaries 600 --runs 1"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def ended(line: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(line.split())
    code = stopped.value.code
    return code if isinstance(code, int) else 0


def test_a_sound_recipe_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(f"audit digits {QUICK}") == 0
    shown = capsys.readouterr().out
    assert "gradient canaries" in shown and "Consistent with what is proven" in shown
    assert Path("audit/audit.html").is_file()
    assert ended(f"audit digits {QUICK} --json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["status"] == "consistent" and said["exit_code"] == 0
    assert said["findings"][0]["coins"] == 600


def test_figures_are_whole_in_80_columns_and_say_what_few_coins_cannot(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    generator = np.random.default_rng(1)
    heads = generator.random(200) < 0.5
    scores = Scores(generator.normal(size=200) + heads, heads)
    played = Played(scores, events.gaussian(1.0), Relation.ADD_OR_REMOVE_ONE, True)
    finding = conclude("loss threshold", [played], 1e-5)
    command._show(Audit("A run", (finding,), False), Path("audit"))
    shown = capsys.readouterr().out
    words = " ".join(shown.split())
    assert f"({finding.auc.low:.3f}–{finding.auc.high:.3f})" in words and "…" not in shown
    assert f"{finding.coins_needed['0.001']:,}" in words.split() and "needs" in words
    assert f"≤ {finding.highest_auc:.3f}" in words


def test_a_fault_ends_with_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with next(one for one in faults.FAULTS if one.name == "no noise").plant():
        assert ended(f"audit digits {QUICK}") == 9
        shown = capsys.readouterr()
        assert "Proof or code is broken" in shown.out and "Proof or code is broken" in shown.err
        assert ended(f"audit digits {QUICK} --json") == 9
    said = json.loads(capsys.readouterr().out)
    assert said["status"] == "broken" and said["exit_code"] == 9


def test_the_self_test_shows_what_was_planted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [one for one in faults.FAULTS if one.name in ("correct DP-FTRL", "no clipping")]
    monkeypatch.setattr("tacit.audit.selftest.self_test.__defaults__", (wanted,))
    assert ended("audit --self-test --json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["passed"] and [one["fault"] for one in said["tried"]] == [w.name for w in wanted]
    assert [one["finding"]["status"] for one in said["tried"]] == ["consistent", "broken"]
    assert ended("audit --self-test") == 0
    assert "no clipping" in capsys.readouterr().out


def test_an_audit_that_misses_a_fault_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    harmless = next(one for one in faults.FAULTS if one.harmless)
    missed = faults.Fault("a fault", harmless.plant, harmless.settings)
    monkeypatch.setattr("tacit.audit.selftest.self_test.__defaults__", ([missed],))
    assert ended("audit --self-test") == 9
    assert "wrong about a fault" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("audit", "nothing to audit"),
        ("audit digits --self-test", "leave out the run or recipe"),
        ("audit digits --attack nothing", "known: gradient-canaries"),
        ("audit nowhere", "neither a dataset"),
        ("audit digits --confidence 2 --canaries 600 --runs 1", "confidence is 2"),
    ],
)
def test_mistakes_are_explained(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(line) == 2
    assert said in " ".join(capsys.readouterr().err.split())
