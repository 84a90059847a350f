"""Settings around private features: what has no use, or no proof, is refused by its name."""

from pathlib import Path
from typing import Any

import pytest
from sanitized_runs import CLASSES, FEATURES, dataset, network, recipe, started
from torch import nn

import tacit
from tacit.errors import ArgumentError
from tacit.models import SanitizationLayer


def test_selective_update_covers_features_while_its_noise_stays(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"relation": "replace-features", "noise": 2.0, "epsilon": 20.0}
    settings |= {"batch_size": 30, "validation_batch_size": 30, "epochs": 1}
    model, records = nn.Linear(FEATURES, CLASSES), dataset(0.0)
    run = tacit.fit(model, records, method="dpsur", out=tmp_path / "a", **settings)
    assert run.certificate["proven"]["replace-features"] == run.certificate["proven"]["replace-one"]
    with pytest.raises(ArgumentError, match=r"relation is replace-features.*no proof"):
        tacit.fit(model, records, method="dpsgd-br", out=tmp_path / "b", **settings)


@pytest.mark.parametrize(
    ("guarantee", "setting", "value", "more"),
    [
        ("one-time", "activation_noise", 5.0, {}),
        ("class-sums", "gradient_clip", 0.1, {}),
        ("class-sums", "dropout", 0.5, {}),
        ("one-time", "mask", "bernoulli", {}),
        ("one-time", "window", 3, {}),
        ("joint", "slope", 0.1, {"stop": "flag", "follow": 0.1}),
        ("joint", "tolerance", 0.5, {"stop": "flag"}),
    ],
)
def test_settings_without_a_use_are_refused(
    tmp_path: Path, guarantee: str, setting: str, value: float | str, more: dict[str, Any]
) -> None:
    with pytest.raises(ArgumentError, match=f"^{setting} is {value!r}.*leave it out"):
        started(tmp_path / "run", recipe(guarantee, **{setting: value}, **more))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("clip", 0.3), ("noise", 5.0), ("range", "symmetric"), ("dropout", 0.5)],
)
def test_a_layer_of_ones_own_is_not_set_to_something_else_in_silence(
    tmp_path: Path, setting: str, value: float | str
) -> None:
    layer = SanitizationLayer(**{setting: value})
    model = nn.Sequential(nn.Linear(FEATURES, 8), layer, nn.Linear(8, CLASSES))
    settings: dict[str, Any] = {"method": "sanitization", "noise": 2.0, "batch_size": 30}
    with pytest.raises(ArgumentError, match=f"^{setting} of the SanitizationLayer is {value!r}"):
        tacit.fit(model, dataset(0.0), out=tmp_path / "other", **settings)
    settings[setting] = value
    tacit.fit(model, dataset(0.0), out=tmp_path / "same", epochs=1, **settings)
    found = layer.threshold if setting == "clip" else getattr(layer.settings, setting)
    assert found == pytest.approx(value)


@pytest.mark.parametrize(("head", "parts"), [("ridge", 4), ("prototypes", 2)])
def test_certificates_of_class_sums_list_every_part(tmp_path: Path, head: str, parts: int) -> None:
    released = started(tmp_path / "run", recipe("class-sums", head=head)).method.promise.released
    assert released[:2] == ("noised sums over the records of each class", "the weights")
    assert len(released) == parts
    named = " ".join(released)
    for part in ("sum of all vectors", "second moments"):
        assert (part in named) == (head == "ridge")


@pytest.mark.parametrize(
    ("method", "relation", "times"),
    [
        ("dpsgd", "replace-features", 1),
        ("dpsgd", "replace-one", 0),
        ("sanitization", "replace-features", 1),
    ],
)
def test_certificates_say_that_labels_are_public(
    tmp_path: Path, method: str, relation: str, times: int
) -> None:
    model = network() if method == "sanitization" else nn.Linear(FEATURES, CLASSES)
    settings: dict[str, Any] = {"relation": relation, "noise": 2.0, "batch_size": 30, "epochs": 1}
    run = tacit.fit(model, dataset(0.0), method=method, out=tmp_path / "run", **settings)
    public = run.certificate["treated_as_public"]
    assert sum("every record's label" in each for each in public) == times


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one", "zero-out"])
def test_the_papers_algorithm_is_shown_under_its_own_relation_only(
    tmp_path: Path, relation: str
) -> None:
    chosen = recipe("paper").with_settings(relation=relation)
    with pytest.raises(ArgumentError, match=f"relation is '{relation}'"):
        started(tmp_path / "run", chosen)


@pytest.mark.parametrize("guarantee", ["paper", "one-time", "joint", "class-sums"])
def test_noise_that_costs_more_than_the_epsilon_beside_it_is_refused(
    tmp_path: Path, guarantee: str
) -> None:
    """For the paper's algorithm what counts is what it claims."""
    with pytest.raises(ArgumentError, match=r"noise is 1, which costs ε = .* more than epsilon"):
        started(tmp_path / "run", recipe(guarantee).with_settings(epsilon=0.1))
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
