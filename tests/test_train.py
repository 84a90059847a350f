"""From recipe to records: what is trained on, what is held out, what the certificate says."""

from pathlib import Path

import pytest
import torch

from tacit.config import from_values
from tacit.data.datasets import Split
from tacit.errors import ArgumentError
from tacit.train import _split, recipe_for, train


def test_held_out_records_are_apart_and_always_the_same() -> None:
    whole = Split(torch.arange(100).view(-1, 1), torch.arange(100))
    kept, held = _split(whole, 30, "data.holdout")
    again = _split(whole, 30, "data.holdout")[1]
    assert len(kept) == 70 and len(held) == 30
    assert sorted([*kept.labels.tolist(), *held.labels.tolist()]) == list(range(100))
    assert torch.equal(held.labels, again.labels)
    assert len(set(held.labels.diff().tolist())) > 3
    with pytest.raises(ArgumentError, match="holdout is 100"):
        _split(whole, 100, "data.holdout")


def test_held_out_records_are_named_in_the_certificate(tmp_path: Path) -> None:
    values = {"data": {"name": "digits", "holdout": 200}, "training": {"epochs": 1}}
    result = train(from_values(values), out=tmp_path / "run")
    assert "held out" in result.metrics["evaluated_on"]
    assert result.metrics["records"] == 1238
    assert any("held-out" in sentence for sentence in result.certificate["not_covered"])


def test_unknown_things_to_train_on_are_refused() -> None:
    assert recipe_for("mnist").model.name == "linear"
    with pytest.raises(ArgumentError, match="neither a dataset"):
        recipe_for("nothing-at-all")


def test_unknown_data_options_are_refused() -> None:
    values = {"data": {"name": "digits", "options": {"colour": 1}}}
    with pytest.raises(ArgumentError, match="known options"):
        train(from_values(values))
