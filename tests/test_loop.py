"""`fit` and the lower level: the same code, whole runs, honest certificates."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_runs import CLASSES, FEATURES, RECORDS, small_model, small_recipe
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import tacit
from tacit.data.batches import TensorRecords
from tacit.errors import ArgumentError, DataError, LedgerError, ModelError, RunError
from tacit.progress import Moment, Silent
from tacit.verify import account


class Watching(Silent):
    def __init__(self) -> None:
        self.moments: list[Moment] = []

    def show(self, moment: Moment) -> None:
        self.moments.append(moment)


def run(path: Path, records: TensorRecords, **settings: Any) -> tacit.Result:
    return tacit.fit(
        small_model(), records, test=records, recipe=small_recipe(**settings), out=path
    )


def test_ten_lines_of_python(tmp_path: Path) -> None:
    x = torch.randn(400, 5)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    result = tacit.fit(
        model, data, test=data, epsilon=4.0, epochs=6, batch_size=100, out=tmp_path / "run"
    )
    assert result.epsilon <= 4.0 and result.accuracy is not None and result.accuracy > 0.6
    assert result.report.read_text("utf-8").startswith("<!DOCTYPE html>")
    stored = load_file(tmp_path / "run" / "weights.safetensors")
    assert all(torch.equal(stored[name], value) for name, value in model.state_dict().items())


def test_a_loop_of_ones_own_gives_the_same_weights(tmp_path: Path, records: TensorRecords) -> None:
    whole = run(tmp_path / "fit", records)
    steps = tacit.PrivateSteps(
        small_model(), records, recipe=small_recipe(), out=tmp_path / "steps"
    )
    taken = 0
    for batch in steps:
        taken += 1
        steps.step(tacit.cross_entropy, batch)
    result = steps.finish()
    assert taken == 20 and len(steps) == 0
    assert result.certificate["weights_sha256"] == whole.certificate["weights_sha256"]
    assert result.epsilon == whole.epsilon


def test_ones_own_optimizer_and_changed_batches(tmp_path: Path, records: TensorRecords) -> None:
    model = small_model()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    steps = tacit.PrivateSteps(
        model,
        records,
        optimizer=optimizer,
        recipe=small_recipe(),
        assume_independent=True,
        out=tmp_path / "run",
    )
    for batch in steps:
        changed = (batch[0] * 2, batch[1]) if batch else None
        steps.step(tacit.cross_entropy, changed)
    assert steps.epsilon == pytest.approx(steps.finish().epsilon, abs=2e-4)
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_an_optimizer_may_be_named(tmp_path: Path, records: TensorRecords) -> None:
    result = tacit.fit(
        small_model(), records, recipe=small_recipe(), optimizer="adam", out=tmp_path / "run"
    )
    assert 'optimizer = "adam"' in (result.path / "recipe.toml").read_text("utf-8")


def test_batches_must_be_used_and_kept_whole(tmp_path: Path, records: TensorRecords) -> None:
    steps = tacit.PrivateSteps(small_model(), records, recipe=small_recipe(), out=tmp_path / "run")
    with pytest.raises(ArgumentError, match="without a batch"):
        steps.step(tacit.cross_entropy)
    drawn = iter(steps)
    batch = next(drawn)
    with pytest.raises(ArgumentError, match="must not be added or left out"):
        steps.step(tacit.cross_entropy, (batch[0][1:], batch[1][1:]))
    drawn = iter(steps)
    next(drawn)
    with pytest.raises(ArgumentError, match="not used"):
        next(drawn)


def test_progress_shows_public_values_and_never_exceeds_the_budget(
    tmp_path: Path, records: TensorRecords
) -> None:
    watcher = Watching()
    recipe = small_recipe(epsilon=2.0, noise=None)
    tacit.fit(
        small_model(), records, test=records, recipe=recipe, out=tmp_path / "r", watcher=watcher
    )
    last = watcher.moments[-1]
    assert last.step == last.steps == 20
    assert last.epsilon is not None and last.epsilon <= 2.0
    assert last.accuracy is not None and last.records_per_second > 0


def test_metrics_hold_what_the_report_shows(tmp_path: Path, records: TensorRecords) -> None:
    result = run(tmp_path / "run", records)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_bytes())
    assert len(metrics["evaluations"]) == 2
    assert sum(map(sum, metrics["final"]["confusion"])) == RECORDS
    assert metrics["epsilon_curve"][-1] == [20, result.epsilon]
    assert [e["epsilon"] for e in metrics["evaluations"]][-1] == result.epsilon


def test_plain_sgd_gets_no_certificate(tmp_path: Path, records: TensorRecords) -> None:
    recipe = tacit.Recipe().with_settings(method="plain", epochs=20, batch_size=30, seed=0)
    result = tacit.fit(small_model(), records, test=records, recipe=recipe, out=tmp_path / "run")
    assert result.certificate["guarantee"] is None and result.epsilon == float("inf")
    assert not list((tmp_path / "run").glob("certificate.*"))
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "No privacy guarantee" in page and "no certificate was issued" in page
    assert account(tmp_path / "run")["guarantee"] is None
    (tmp_path / "run" / "certificate.json").write_text("{}")
    with pytest.raises(LedgerError, match="must not be there"):
        account(tmp_path / "run")
    again = tacit.fit(small_model(), records, recipe=recipe, out=tmp_path / "run", resume=True)
    assert not list((tmp_path / "run").glob("certificate.*"))
    assert again.certificate == result.certificate
    assert result.accuracy is not None and result.accuracy > 0.8


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adam", "learning_rate": 0.01},
        {"momentum": 0.9, "weight_decay": 1e-3},
        {"schedule": "cosine", "warmup": 0.1},
        {"schedule": "linear"},
        {"average": 0.9},
        {"clipping": "automatic"},
        {"engine": "loop"},
        {"engine": "reference"},
        {"relation": "replace-one"},
    ],
)
def test_every_setting_trains(
    tmp_path: Path, records: TensorRecords, settings: dict[str, Any]
) -> None:
    result = run(tmp_path / "run", records, **settings)
    assert result.epsilon < float("inf") and result.accuracy is not None


def test_augmented_views_train(tmp_path: Path) -> None:
    images, labels = torch.randint(0, 255, (60, 1, 8, 8)).byte(), torch.arange(60) % 3
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    recipe = small_recipe(views=4, augment=["shift", "flip"], batch_size=20)
    result = tacit.fit(model, TensorRecords(images, labels), recipe=recipe, out=tmp_path / "run")
    assert result.accuracy is None and result.certificate["steps"] == 6


def test_the_certificate_says_what_a_reviewer_asks(tmp_path: Path, records: TensorRecords) -> None:
    issued = run(tmp_path / "run", records).certificate
    for key in ("released", "sampling", "treated_as_public", "tuning", "versions", "proof"):
        assert issued[key]
    assert any("300" in sentence for sentence in issued["treated_as_public"])
    assert any("seed" in warning for warning in issued["warnings"])
    assert "seed 1" in issued["randomness"]
    unseeded = tacit.fit(
        small_model(), records, recipe=small_recipe(seed=None, delta=0.1), out=tmp_path / "b"
    )
    assert "operating-system entropy" in unseeded.certificate["randomness"]
    assert any("one over the number" in warning for warning in unseeded.certificate["warnings"])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((torch.randn(50, FEATURES), torch.full((50,), CLASSES)), "outside 0…2"),
        ((torch.randn(50, FEATURES), torch.randn(50)), "whole"),
        ((torch.full((50, FEATURES), torch.inf), torch.zeros(50).long()), "NaN, infinite"),
        ((torch.zeros(0, FEATURES), torch.zeros(0).long()), "empty"),
    ],
)
def test_bad_records_are_refused_before_anything_is_spent(
    tmp_path: Path, data: tuple[Tensor, Tensor], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        tacit.fit(small_model(), data, recipe=small_recipe(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_batch_larger_than_the_data_is_refused(tmp_path: Path, records: TensorRecords) -> None:
    with pytest.raises(ArgumentError, match="batch_size is 301"):
        run(tmp_path / "run", records, batch_size=301)


def test_a_model_that_mixes_records_is_refused(tmp_path: Path, records: TensorRecords) -> None:
    model = nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))
    with pytest.raises(ModelError, match="GroupNorm"):
        tacit.fit(model, records, recipe=small_recipe(), out=tmp_path / "run")


def test_accounting_from_files_alone(tmp_path: Path, records: TensorRecords) -> None:
    done = run(tmp_path / "run", records)
    assert account(tmp_path / "run") == json.loads(json.dumps(done.certificate))
    assert account(tmp_path / "run", delta=1e-7)["guarantee"]["epsilon"] > done.epsilon


def test_swapped_weights_are_found(tmp_path: Path, records: TensorRecords) -> None:
    run(tmp_path / "a", records)
    run(tmp_path / "b", records, seed=2)
    (tmp_path / "a" / "weights.safetensors").write_bytes(
        (tmp_path / "b" / "weights.safetensors").read_bytes()
    )
    with pytest.raises(LedgerError, match="not what the ledger ends with"):
        account(tmp_path / "a")
    (tmp_path / "a" / "weights.safetensors").unlink()
    with pytest.raises(LedgerError, match="missing"):
        account(tmp_path / "a")


def test_a_certificate_that_promises_more_is_found(tmp_path: Path, records: TensorRecords) -> None:
    run(tmp_path / "run", records)
    path = tmp_path / "run" / "certificate.json"
    stored = json.loads(path.read_bytes())
    stored["guarantee"]["epsilon"] = 0.1
    path.write_text(json.dumps(stored))
    with pytest.raises(LedgerError, match="guarantee"):
        account(tmp_path / "run")


def test_every_word_of_the_certificate_counts(tmp_path: Path, records: TensorRecords) -> None:
    run(tmp_path / "run", records)
    stored, text = (tmp_path / "run" / f"certificate.{kind}" for kind in ("json", "txt"))
    whole = stored.read_text("utf-8")
    stored.write_text(json.dumps({**json.loads(whole), "warnings": []}), "utf-8")
    with pytest.raises(LedgerError, match="warnings"):
        account(tmp_path / "run")
    stored.write_text(whole, "utf-8")
    text.write_text(text.read_text("utf-8").replace("seed", "dice"), "utf-8")
    with pytest.raises(LedgerError, match="does not say"):
        account(tmp_path / "run")
    stored.unlink()
    with pytest.raises(LedgerError, match="missing"):
        account(tmp_path / "run")


def test_a_key_beside_released_weights_is_refused(tmp_path: Path, records: TensorRecords) -> None:
    run(tmp_path / "run", records)
    (tmp_path / "run" / "private").mkdir()
    with pytest.raises(LedgerError, match="noise can be subtracted"):
        account(tmp_path / "run")


def test_epsilon_and_noise_must_agree(tmp_path: Path, records: TensorRecords) -> None:
    with pytest.raises(ArgumentError, match="more than epsilon"):
        run(tmp_path / "run", records, epsilon=1.0, noise=0.5)
    assert run(tmp_path / "ok", records, epsilon=9.0, noise=2.0).certificate["budget"] == 9.0
    assert run(tmp_path / "noise", records, noise=2.0).certificate["budget"] is None


@pytest.mark.parametrize("relation", list(tacit.Relation))
def test_every_relation_is_certified(
    tmp_path: Path, records: TensorRecords, relation: tacit.Relation
) -> None:
    issued = run(tmp_path / "run", records, relation=relation.value).certificate
    assert issued["guarantee"]["relation"] == relation.value
    assert issued["guarantee"]["epsilon"] == issued["proven"][relation.value]


def test_stale_gradients_are_never_applied(tmp_path: Path, records: TensorRecords) -> None:
    model = small_model()
    model(records.features).sum().backward()
    model[0].requires_grad_(False)
    before = model[0].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    tacit.fit(model, records, recipe=small_recipe(), optimizer=optimizer, out=tmp_path / "run")
    assert torch.equal(model[0].weight, before)


def test_a_shortened_ledger_is_found(tmp_path: Path, records: TensorRecords) -> None:
    run(tmp_path / "run", records)
    path = tmp_path / "run" / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(LedgerError):
        account(tmp_path / "run")


def test_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        account(tmp_path)
