"""Settings around private features: what has no use, or no proof, is refused by its name."""

from pathlib import Path
from typing import Any

import pytest
from sanitized_runs import CLASSES, FEATURES, dataset
from torch import nn

import tacit
from tacit.errors import ArgumentError


def test_selective_update_covers_features_while_its_noise_stays(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"relation": "replace-features", "noise": 2.0, "epsilon": 20.0}
    settings |= {"batch_size": 30, "validation_batch_size": 30, "epochs": 1}
    model, records = nn.Linear(FEATURES, CLASSES), dataset(0.0)
    run = tacit.fit(model, records, method="dpsur", out=tmp_path / "a", **settings)
    assert run.certificate["proven"]["replace-features"] == run.certificate["proven"]["replace-one"]
    with pytest.raises(ArgumentError, match="relation is replace-features.*no proof"):
        tacit.fit(model, records, method="dpsgd-br", out=tmp_path / "b", **settings)
