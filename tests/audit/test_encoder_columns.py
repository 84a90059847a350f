"""The encoder's columns: they refute the paper's claim, and find nothing in sound variants."""

from pathlib import Path

import pytest

from tacit.audit.attacks import Settings
from tacit.audit.run import audit
from tacit.audit.verdict import Finding, Status
from tacit.errors import RunError


def found(out: Path, guarantee: str, **privacy: str) -> Finding:
    changes = {
        "method.name": "sanitization",
        "method.guarantee": guarantee,
        "model.name": "mlp",
        "training.epochs": "3",
        "training.batch_size": "30",
        **{f"privacy.{key}": value for key, value in privacy.items()},
    }
    done = audit("digits", changes=changes, settings=Settings(canaries=32, runs=1), out=out)
    assert [finding.attack for finding in done.findings] == ["encoder columns"]
    return done.worst


def test_the_papers_claim_is_refuted(tmp_path: Path) -> None:
    finding = found(tmp_path, "paper", noise="2.0")
    assert finding.claimed is not None and finding.claimed < 1
    assert finding.status is Status.CLAIM_REFUTED
    assert finding.epsilon > 1.5 * finding.claimed  # one game's bound: 0.95 and 1.35 were seen
    assert finding.relation == "replace-features"


@pytest.mark.parametrize("guarantee", ["one-time", "class-sums"])
def test_a_frozen_encoder_shows_nothing(tmp_path: Path, guarantee: str) -> None:
    finding = found(tmp_path, guarantee, epsilon="1.0")
    assert finding.status is Status.CONSISTENT
    assert finding.epsilon == 0.0
    assert finding.auc.low <= finding.highest_auc


def test_networks_without_columns_are_refused(tmp_path: Path) -> None:
    changes = {"method.name": "sanitization", "model.name": "convnet"}
    with pytest.raises(RunError, match=r"model\.name=mlp"):
        audit("digits", changes=changes, settings=Settings(canaries=32, runs=1), out=tmp_path)
