"""Whole runs on the real datasets; needs TACIT_REALDATA, which CI sets where they are."""

import os
from pathlib import Path

import pytest

from tacit.audit.attacks import Settings
from tacit.audit.run import audit
from tacit.audit.verdict import Status
from tacit.config import from_values, load
from tacit.train import train
from tacit.verify import account

DATA = os.environ.get("TACIT_REALDATA")
pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(not DATA, reason="TACIT_REALDATA does not point to the datasets"),
]


@pytest.mark.parametrize(
    ("name", "model", "at_least"),
    [
        ("mnist", "lenet5", 0.80),
        ("mnist", "mlp", 0.75),
        ("mnist", "tempered-cnn", 0.88),
        ("fashion-mnist", "tempered-cnn", 0.65),
        ("imdb", "text-mean", 0.50),
    ],
)
def test_two_private_epochs_learn_something(
    tmp_path: Path, name: str, model: str, at_least: float
) -> None:
    recipe = from_values(
        {
            "data": {"name": name},
            "model": {"name": model},
            "privacy": {"epsilon": 3.0},
            "training": {"epochs": 2, "batch_size": 512, "learning_rate": 0.5, "momentum": 0.5},
            "run": {"seed": 0},
        }
    )
    result = train(recipe, data_dir=Path(str(DATA)), out=tmp_path / "run")
    assert result.epsilon <= 3.0
    assert result.accuracy is not None and result.accuracy >= at_least
    assert account(tmp_path / "run")["guarantee"]["epsilon"] == result.epsilon


@pytest.mark.parametrize(
    ("name", "at_least"), [("000/mnist-class-sums", 0.94), ("000/mnist-joint", 0.96)]
)
def test_sound_variants_reach_their_accuracy_at_a_small_budget(
    tmp_path: Path, name: str, at_least: float
) -> None:
    recipe = load(name, {"run.seed": "3"})
    result = train(recipe, data_dir=Path(str(DATA)), out=tmp_path / "run")
    assert result.epsilon <= 1.0
    assert result.accuracy is not None and result.accuracy >= at_least
    assert account(tmp_path / "run")["guarantee"]["relation"] == "replace-features"


@pytest.mark.parametrize(
    ("recipe", "status"),
    [
        ("000/mnist-paper-short", Status.CLAIM_REFUTED),
        ("000/mnist-one-time", Status.CONSISTENT),
        ("000/mnist-class-sums", Status.CONSISTENT),
    ],
)
def test_an_audit_refutes_the_sanitization_layer_and_not_what_is_proven(
    tmp_path: Path, recipe: str, status: Status
) -> None:
    changes = {
        **{"model.name": "mlp", "model.width": "0", "method.encoder": "given"},
        **{"training.epochs": "2", "training.batch_size": "250"},
    }
    settings = Settings(runs=1)
    done = audit(recipe, changes=changes, settings=settings, out=tmp_path, data_dir=Path(str(DATA)))
    assert done.worst.status is status
    assert done.worst.epsilon > 1.5 if status is Status.CLAIM_REFUTED else done.worst.epsilon == 0.0
