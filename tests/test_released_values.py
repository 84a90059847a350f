"""What a finished run holds: a whitelist of files, keys and kinds of values, for every method."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from released_values import FILES, VECTORS, coarse, faults, public_values
from safetensors.torch import load_file
from small_runs import (
    CLASSES,
    DECAYING,
    FEATURES,
    RECORDS,
    small_model,
    small_recipe,
    written_recipe,
)
from torch import nn
from typer.testing import CliRunner

import tacit
from tacit import config, journal
from tacit.cli import app
from tacit.commands import output
from tacit.config import Recipe
from tacit.data.batches import TensorRecords
from tacit.evaluate import evaluate
from tacit.journal import Journal, coarse_seconds
from tacit.losses import cross_entropy
from tacit.methods.build import _BUILDERS
from tacit.models import batch_norm, with_sanitization
from tacit.report import write_report
from tacit.tune import tune_privately
from tacit.verify import account

Network = Callable[[], nn.Module]


def sanitized() -> nn.Module:
    return with_sanitization(small_model())


def normalised() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(
            nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
        )


SETTINGS: dict[str, tuple[Network, dict[str, Any]]] = {
    "dpsgd": (small_model, {"average": 0.9}),
    "layerwise": (small_model, {"clipping": "adaptive-layerwise"}),
    "dpftrl": (small_model, {"method": "dpftrl"}),
    "banded": (small_model, {"method": "dpftrl", "mechanism": "banded"}),
    "amplified": (small_model, {"method": "dpftrl", "mechanism": "amplified", "bands": 2}),
    "noisy": (normalised, {"method": "batch-clipping", "mini_sets": 5, "batch_norm": "noisy"}),
    "public": (normalised, {"method": "batch-clipping", "mini_sets": 5, "batch_norm": "public"}),
    "dpsur": (small_model, {"method": "dpsur", "validation_batch_size": 60}),
    "dpsgd-br": (small_model, DECAYING),
    "paper": (sanitized, {"guarantee": "paper", "stop": "stop", "window": 2, "epochs": 6}),
    "one-time": (sanitized, {"guarantee": "one-time", "head": "prototypes"}),
    "joint": (sanitized, {"guarantee": "joint", "stop": "flag", "follow": 0.1, "window": 2}),
    "class-sums": (sanitized, {"guarantee": "class-sums", "range": "ball"}),
    "plain": (small_model, {"method": "plain", "noise": None}),
}
ADAPTIVE = {
    "dpsgd-br": ("ledger.charge.*", "ledger.release.entry", "certificate.charges", "metrics.e*"),
    "paper": ("ledger.*", "certificate.charges", "metrics.e*"),
}
"""Where later steps follow from what earlier ones released, places that are released as well."""


def recipe_of(name: str) -> Recipe:
    settings = SETTINGS[name][1]
    if "guarantee" in settings:
        settings = {"method": "sanitization", **settings}
    return small_recipe(**{"seed": None, **settings})


def records_like(other: int, labels_of: int) -> TensorRecords:
    """As many records as ever, all of them others; only labels may be the same."""
    x = torch.randn(RECORDS, FEATURES, generator=torch.Generator().manual_seed(other))
    y = torch.randn(RECORDS, CLASSES, generator=torch.Generator().manual_seed(labels_of))
    return TensorRecords(x * (1 + other), y.argmax(1))


PUBLIC_RECORDS = records_like(9, 9)


def run(name: str, out: Path, other: int = 1) -> tacit.Result:
    network, settings = SETTINGS[name]
    train = records_like(other, 1 if "guarantee" in settings else other)
    known = None if name == "dpsgd-br" else PUBLIC_RECORDS
    recipe = recipe_of(name)
    return tacit.fit(network(), train, test=PUBLIC_RECORDS, public=known, recipe=recipe, out=out)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A finished run of each kind, made when it is first asked for."""
    made: dict[str, Path] = {}

    def path(name: str) -> Path:
        if name not in made:
            made[name] = run(name, tmp_path_factory.mktemp(name) / "run").path
        return made[name]

    return path


def test_every_method_is_here() -> None:
    assert {type(recipe_of(name).method) for name in SETTINGS} == set(_BUILDERS)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_holds_nothing_that_is_not_on_the_list(
    name: str, finished: Callable[[str], Path]
) -> None:
    path = finished(name)
    assert faults(path) == []
    missing = FILES - {each.name for each in path.iterdir()}
    assert missing == ({"certificate.json", "certificate.txt"} if name == "plain" else set())
    assert (path / "recipe.toml").read_text("utf-8") == recipe_of(name).as_toml()


@pytest.mark.parametrize("name", SETTINGS)
def test_public_values_are_the_same_for_other_records_keys_and_directories(
    name: str, finished: Callable[[str], Path], tmp_path: Path
) -> None:
    other = run(name, tmp_path / "elsewhere" / "other", 3).path
    not_public = ADAPTIVE.get(name, ())
    first, second = public_values(finished(name), not_public), public_values(other, not_public)
    assert first == second and len(first) > 30


@pytest.mark.parametrize("name", SETTINGS)
def test_metrics_are_those_of_the_released_weights_on_public_records(
    name: str, finished: Callable[[str], Path]
) -> None:
    path = finished(name)
    metrics = json.loads((path / "metrics.json").read_bytes())
    model = SETTINGS[name][0]()
    if name in ("noisy", "public"):
        batch_norm.seal(model)
    for module in model.modules():
        if hasattr(module, "centre"):
            module.centre = load_file(path / "weights.safetensors")["2.centre"]
        if hasattr(module, "settings") and name in ("one-time", "joint", "class-sums"):
            chosen = recipe_of(name).method
            module.settings = type(module.settings)(8, 1.0, chosen.values_in)
    batch_norm.load(model, load_file(path / "weights.safetensors"))
    found = evaluate(model, PUBLIC_RECORDS, cross_entropy)
    final, last = metrics["final"], metrics["evaluations"][-1]
    assert final["loss"] == pytest.approx(found.loss, rel=1e-5)
    assert (final["accuracy"], final["confusion"]) == (found.accuracy, found.confusion)
    assert (last["loss"], last["accuracy"]) == (final["loss"], final["accuracy"])
    assert sum(map(sum, final["confusion"])) == RECORDS


@pytest.mark.parametrize("name", SETTINGS)
def test_certificate_and_report_follow_from_the_files_beside_them(
    name: str, finished: Callable[[str], Path], tmp_path: Path
) -> None:
    """Nothing but the files on the list is in them: no path, no time, no memory of the run."""
    path = finished(name)
    account(path)
    moved = Path(shutil.copytree(path, tmp_path / "moved"))
    page = (moved / "report.html").read_bytes()
    (moved / "report.html").unlink()
    (moved / "weights.safetensors").unlink()
    assert write_report(moved).read_bytes() == page


@pytest.mark.parametrize("name", SETTINGS)
def test_weights_are_what_the_model_names_and_nothing_more(
    name: str, finished: Callable[[str], Path]
) -> None:
    weights = load_file(finished(name) / "weights.safetensors")
    initial = SETTINGS[name][0]().state_dict()
    assert weights.keys() == initial.keys()
    data = (finished(name) / "weights.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header.keys() == weights.keys()


def test_a_resumed_run_adds_nothing_but_its_lines(tmp_path: Path) -> None:
    taken = 0

    def stopping(model: nn.Module, batch: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken == 6:
            raise KeyboardInterrupt
        return cross_entropy(model, batch)

    recipe, records = small_recipe(seed=None), records_like(1, 1)
    with pytest.raises(KeyboardInterrupt):
        tacit.fit(small_model(), records, recipe=recipe, loss=stopping, out=tmp_path / "run")
    done = tacit.fit(
        small_model(),
        records,
        test=PUBLIC_RECORDS,
        recipe=recipe,
        loss=stopping,
        out=tmp_path / "run",
        resume=True,
    )
    assert b'"resume"' in (done.path / "ledger.jsonl").read_bytes()
    assert faults(done.path) == []


def test_released_vectors_and_searches_are_on_the_list(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["sanitize", "digits", "--out", str(tmp_path / "vectors")])
    assert told.exit_code == 0, told.output
    assert faults(tmp_path / "vectors", {*FILES, VECTORS}) == []
    assert set(np.load(tmp_path / "vectors" / VECTORS)) == {"x", "y", "x_test", "y_test"}
    shared = config.from_values(
        {
            "data": {"name": "digits", "holdout": 300},
            "model": {"name": "linear"},
            "training": {"epochs": 2, "batch_size": 1137},
        }
    )
    tune_privately(shared, {"method.clip": "0.5,1"}, out=tmp_path / "search", runs=2)
    assert faults(tmp_path / "search") == []


def planted_batch_size(steps: Any, metrics: dict[str, Any]) -> dict[str, Any]:
    return metrics | {"batch_sizes": [28, 33]}


def planted_batch_size_as_records(steps: Any, metrics: dict[str, Any]) -> dict[str, Any]:
    sizes = (len(steps.method.sampler.draw(step)) for step in range(5))
    return metrics | {"records": int("".join(f"{size:03}" for size in sizes))}


def planted_loss(steps: Any, metrics: dict[str, Any]) -> dict[str, Any]:
    private = evaluate(steps.state.model, records_like(1, 1), cross_entropy)
    return metrics | {"training_loss": private.loss}


def planted_loss_as_final(steps: Any, metrics: dict[str, Any]) -> dict[str, Any]:
    private = evaluate(steps.state.model, records_like(1, 1), cross_entropy)
    return metrics | {"final": metrics["final"] | {"loss": private.loss}}


def planted_seconds(steps: Any, metrics: dict[str, Any]) -> dict[str, Any]:
    return metrics | {"training_seconds": 12.34}


def planted_rate(steps: Any, metrics: dict[str, Any]) -> dict[str, Any]:
    return metrics | {"records_per_second": 1000.0}


def planted_time(steps: Any, metrics: dict[str, Any]) -> dict[str, Any]:
    for row in metrics["evaluations"]:
        row["seconds"] = 10.0
    return metrics


def planted_path(steps: Any, metrics: dict[str, Any]) -> dict[str, Any]:
    return metrics | {"data": "/home/someone/records.csv"}


@pytest.mark.parametrize(
    "plant",
    [
        *(planted_batch_size, planted_batch_size_as_records, planted_loss, planted_loss_as_final),
        *(planted_seconds, planted_rate, planted_time, planted_path),
    ],
    ids=lambda plant: plant.__name__,
)
def test_planted_metrics_are_found(
    plant: Callable[[Any, dict[str, Any]], dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Journal.metrics

    def metrics(journal: Journal, facts: Any) -> dict[str, Any]:
        return plant(journal._steps, made(journal, facts))

    monkeypatch.setattr(Journal, "metrics", metrics)
    one, other = (run("dpsgd", tmp_path / str(i), i).path for i in (1, 3))
    with pytest.raises(AssertionError):
        test_a_run_holds_nothing_that_is_not_on_the_list("dpsgd", lambda _: one)
        assert public_values(one) == public_values(other)
        test_metrics_are_those_of_the_released_weights_on_public_records("dpsgd", lambda _: one)


def test_a_charge_that_tells_the_realised_batch_size_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tacit.privacy.ledger import Ledger

    append = Ledger.append

    def telling(book: Ledger, kind: str, body: dict[str, Any]) -> Any:
        return append(book, kind, body | ({"rows": 31} if kind == "charge" else {}))

    monkeypatch.setattr(Ledger, "append", telling)
    assert "ledger.charge.rows: 31" in faults(run("dpsgd", tmp_path / "run").path)


def test_files_and_sentences_that_were_not_there_are_found(
    finished: Callable[[str], Path], tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(finished("dpsgd"), tmp_path / "moved"))
    (moved / "batches.npy").write_bytes(b"")
    assert faults(moved) == ["file batches.npy"]
    (moved / "batches.npy").unlink()
    stored = json.loads((moved / "certificate.json").read_bytes())
    stored["warnings"] = [f"see {tmp_path}"]
    (moved / "certificate.json").write_text(json.dumps(stored))
    assert len(faults(moved)) == 1


@pytest.mark.parametrize("seconds", [0.001, 3.0, 10.0, 10.1, 49.0, 51.0, 3601.0, 1e6])
def test_times_are_rounded_up_and_hide_the_sizes_of_batches(seconds: float) -> None:
    told = coarse_seconds(seconds, 10.0)
    assert coarse(told) and told >= seconds and (told <= 2.5 * seconds or told == 10.0)
    assert not coarse(12.34) and not coarse(30.0) and coarse(0.02) and coarse(50.0)


_EPSILON = r"(ε ≤ [\d.]+( of [\d.]+)?|not private)"
_LINES = (
    rf"training  epoch [\d.]+/[\d.]+  {_EPSILON}(  accuracy [\d.]+%)?",
    r"Small",
    r"[└┌─┬┴┐┘]+",
    r"│ accuracy\s+│ [\d.]+% on [\d,]+ records: the test set, treated as public\s*│",
    r"│ ε proven\s+│ ([\d.]+ \([a-z-]+\),?\s*)+│",
    r"│\s+│ ([\d.]+ )?\(?[a-z-]+\)\s+│",
    r"│ ε claimed\s+│ ([\d.]+|no claim)\s*│",
    r"│ ε audited\s+│ not audited yet\s*│",
    r"│ steps\s+│ \d+, noise [\d.]+\s*│",
    r"│ time\s+│ up to (\d+ h 00 min|\d+ min \d\d s|\d+\.0 s)\s*│",
    r"Proven: \(ε = [\d.]+, δ = 1e-05\)-differentially private when one training record is"
    r" present or absent\.",
    r"(weights|certificate|report)\s+\S+/run/(weights\.safetensors|certificate\.txt|report\.html)",
)


def test_logs_say_nothing_that_is_not_on_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for console in (output.screen, output.errors):
        monkeypatch.setattr(console, "_width", 200)
    monkeypatch.setattr(journal, "_SHOWS_PER_SECOND", 1e9)
    made = CliRunner().invoke(
        app, ["train", written_recipe(tmp_path, epochs=12.0), "--out", str(tmp_path / "run")]
    )
    assert made.exit_code == 0
    said = [line.strip() for line in (made.stdout + made.stderr).splitlines() if line.strip()]
    unknown = [line for line in said if not any(re.fullmatch(each, line) for each in _LINES)]
    assert unknown == []
    assert sum(line.startswith("training") for line in said) >= 5


def test_what_programs_are_told_is_what_the_files_hold(tmp_path: Path) -> None:
    out = tmp_path / "run"
    made = CliRunner().invoke(app, ["train", written_recipe(tmp_path), "--out", str(out), "--json"])
    told = json.loads(made.stdout)
    assert made.stderr == "" and told.keys() == {"run", "certificate", "metrics"}
    assert told["run"] == str(out)
    for name in ("certificate", "metrics"):
        assert told[name] == json.loads((out / f"{name}.json").read_bytes())
