"""Audits of recipes and runs from beginning to end, on a small dataset."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tacit.audit.attacks import Settings
from tacit.audit.faults import FAULTS
from tacit.audit.run import Audit, audit
from tacit.audit.verdict import Status
from tacit.errors import ArgumentError, RunError
from tacit.train import recipe_for, train
from tacit.verify import check

SMALL = {"training.epochs": "1", "training.batch_size": "200", "model.name": "linear"}
FEW = Settings(canaries=400, runs=1, shadows=2, pairs=40)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    train(recipe_for("digits", {**SMALL, "run.seed": "1"}), out=out)
    return out


@pytest.fixture
def finished(tmp_path: Path, trained: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_an_audited_run_says_so_in_ledger_certificate_and_report(
    finished: Path, tmp_path: Path
) -> None:
    done = audit(str(finished), settings=FEW, out=tmp_path / "audit")
    certificate = check(finished).certificate
    assert certificate["audited"] == done.entry()
    assert certificate["audited"]["attack"] == "gradient canaries"
    assert done.worst.status is Status.CONSISTENT
    assert done.worst.verdict in " ".join((finished / "certificate.txt").read_text().split())
    report = (finished / "report.html").read_text()
    assert "ROC curve: gradient canaries" in report
    assert "figures of the audit" not in (finished / "certificate.txt").read_text()
    good = done.worst
    bad = replace(good, epsilon=good.proven + 1, attack="another")
    assert Audit("t", (good, bad), False).worst is bad
    assert json.loads((finished / "audit.json").read_text())["findings"][0]["coins"] == 400


def test_auditing_again_plays_nothing_twice_and_adds_nothing(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit(str(finished), settings=FEW, out=tmp_path / "audit")
    before = (finished / "ledger.jsonl").read_bytes()
    monkeypatch.setattr("tacit.audit.canaries.GradientCanaries.play", None)
    audit(str(finished), settings=FEW, out=tmp_path / "audit")
    assert (finished / "ledger.jsonl").read_bytes() == before


def test_attacks_on_the_released_model_are_marked_as_private(
    finished: Path, tmp_path: Path
) -> None:
    names = ["loss-threshold", "lira-online", "partial-gradients"]
    done = audit(str(finished), attacks=names, settings=FEW, out=tmp_path / "audit")
    assert [finding.attack for finding in done.findings] == names
    assert all(finding.relation == "replace-one" for finding in done.findings)
    assert all(finding.status is not Status.BROKEN for finding in done.findings)
    assert all(finding.auc.low <= finding.highest_auc for finding in done.findings)
    certificate = check(finished).certificate
    assert any("figures of the audit" in line for line in certificate["not_covered"])


def test_a_recipe_is_attacked_with_models_of_its_own(tmp_path: Path) -> None:
    changes = {**SMALL, "method.name": "plain", "training.batch_size": "20"}
    names = ["shadow-models", "rmia", "lira-offline", "input-canaries"]
    done = audit("digits", attacks=names, changes=changes, settings=FEW, out=tmp_path, jobs=1)
    assert [finding.attack for finding in done.findings][-1] == "input canaries"
    assert done.worst.status is Status.CONSISTENT
    assert "Nothing was promised" in done.worst.verdict
    assert len(list((tmp_path / "played").glob("model-*.npz"))) == 3
    assert "Nothing was promised" in (tmp_path / "audit.html").read_text()


def test_a_fault_is_loud(tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "no noise")
    with fault.plant():
        done = audit("digits", changes=SMALL, settings=FEW, out=tmp_path)
    assert done.worst.status is Status.BROKEN
    assert done.entry()["status"] == "broken"


def test_an_unknown_attack_is_named_with_the_nearest_known_one(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="did you mean 'gradient-canaries'"):
        audit("digits", attacks=["gradient-canary"], out=tmp_path)


def test_the_recipe_of_a_run_cannot_be_changed(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be changed"):
        audit(str(finished), changes={"method.clip": "2"}, out=tmp_path / "audit")


def test_a_damaged_outcome_is_named(tmp_path: Path) -> None:
    audit("digits", changes=SMALL, settings=FEW, out=tmp_path)
    kept = next((tmp_path / "played").glob("*.npz"))
    kept.write_bytes(b"damaged")
    with pytest.raises(RunError, match="remove it"):
        audit("digits", changes=SMALL, settings=FEW, out=tmp_path)


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ArgumentError, match="shadows is 1"):
        replace(FEW, shadows=1)
    with pytest.raises(ArgumentError, match="runs is 0"):
        replace(FEW, runs=0)
