"""Runs that are cut short or moved go on, and never under-count."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import prepared, save, small_model, small_recipe
from torch.utils.data import Dataset

from tacit import native
from tacit.assemble import Facts, assemble
from tacit.data.batches import DatasetRecords, TensorRecords
from tacit.errors import RunError
from tacit.loop import Result, fit
from tacit.losses import cross_entropy
from tacit.noise.normals import SAMPLER
from tacit.rundir import RunDir
from tacit.steps import Steps


def started(path: Path, records: TensorRecords, **settings: Any) -> Steps:
    steps = prepared(path, records, small_recipe(**settings))
    save(steps, RunDir.open(path))
    return steps


def resumed(path: Path, records: TensorRecords, **settings: Any) -> Steps:
    recipe = small_recipe(**settings)
    return assemble(small_model(), records, recipe, RunDir.open(path), Facts(), resume=True)


def test_a_paid_and_lost_step_is_repeated_not_charged_twice(
    tmp_path: Path, records: TensorRecords
) -> None:
    path = tmp_path / "run"
    first = started(path, records)
    for _ in range(3):
        first.advance(cross_entropy)
    again = resumed(path, records)
    assert again.state.step == 0 and again.remaining == 20
    while again.remaining:
        again.advance(cross_entropy)
    charges = [e for e in again.ledger.entries if e.kind == "charge"]
    assert [c.body["step"] for c in charges] == list(range(20))


def test_other_data_means_new_noise_and_the_lost_steps_are_charged_again(
    tmp_path: Path, records: TensorRecords
) -> None:
    path = tmp_path / "run"
    first = started(path, records)
    for _ in range(3):
        first.advance(cross_entropy)
    changed = TensorRecords(records.features + 1e-3, records.labels)
    again = resumed(path, changed)
    assert again.ledger.entries[-1].body == {
        "step": 0,
        "generation": 1,
        "replay": False,
        "key": again._source.fingerprint,
    }
    assert again.remaining == 17
    while again.remaining:
        again.advance(cross_entropy)
    charges = [e.body for e in again.ledger.entries if e.kind == "charge"]
    assert len(charges) == 20 and again.state.step == 17
    keys = {(c["generation"], c["step"]) for c in charges}
    assert len(keys) == 20


def test_timed_algorithms_never_repeat_noise(tmp_path: Path, records: TensorRecords) -> None:
    path = tmp_path / "run"
    started(path, records, deterministic=False).advance(cross_entropy)
    again = resumed(path, records, deterministic=False)
    assert again.ledger.entries[-1].body["replay"] is False
    assert again.remaining == 19


@pytest.mark.parametrize(("before", "after"), [(0, 3), (3, 0)])
def test_a_step_taken_with_other_kernels_is_charged_again(
    tmp_path: Path, records: TensorRecords, before: int, after: int
) -> None:
    if native.active() is None:
        pytest.skip("the compiled kernels are not built")
    path = tmp_path / "run"
    with native.limited_to(before):
        started(path, records).advance(cross_entropy)
    with native.limited_to(after):
        again = resumed(path, records)
        assert again.ledger.entries[-1].body["replay"] is False
        again.advance(cross_entropy)
    charges = [e.body for e in again.ledger.entries if e.kind == "charge"]
    assert [(c["generation"], c["step"]) for c in charges] == [(0, 0), (1, 0)]


def test_a_step_taken_with_kernels_built_otherwise_is_charged_again(
    tmp_path: Path, records: TensorRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = native.active()
    if kernels is None:
        pytest.skip("the compiled kernels are not built")
    path = tmp_path / "run"
    started(path, records).advance(cross_entropy)
    monkeypatch.setattr(kernels, "build", "another")
    again = resumed(path, records)
    assert again.ledger.entries[-1].body["replay"] is False
    assert again.remaining == 19


def test_a_step_taken_with_another_sampler_is_charged_again(
    tmp_path: Path, records: TensorRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    first = started(path, records)
    first.advance(cross_entropy)
    assert SAMPLER in first.ledger.entries[0].body["randomness"]
    monkeypatch.setattr("tacit.assemble.SAMPLER", "another")
    again = resumed(path, records)
    assert again.ledger.entries[-1].body["replay"] is False
    assert again.remaining == 19


def test_a_step_taken_with_another_number_of_threads_is_charged_again(
    tmp_path: Path, records: TensorRecords
) -> None:
    """Sums over blocks per thread round differently: the repeated step may be another release."""
    threads = torch.get_num_threads()
    path = tmp_path / "run"
    try:
        torch.set_num_threads(1)
        started(path, records).advance(cross_entropy)
        torch.set_num_threads(2)
        again = resumed(path, records)
    finally:
        torch.set_num_threads(threads)
    assert again.ledger.entries[-1].body["replay"] is False
    assert again.ledger.entries[-1].body["generation"] == 1
    assert again.remaining == 19


def test_another_recipe_is_refused(tmp_path: Path, records: TensorRecords) -> None:
    started(tmp_path / "run", records)
    with pytest.raises(RunError, match="recipe"):
        resumed(tmp_path / "run", records, clip=2.0)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, records: TensorRecords
) -> None:
    path = tmp_path / "run"
    first = started(path, records)
    for _ in range(2):
        first.advance(cross_entropy)
    save(first, RunDir.open(path))
    newest = max((path / "private").glob("step-*"))
    newest.write_bytes(newest.read_bytes()[:-20])
    assert resumed(path, records).state.step == 0
    for checkpoint in (path / "private").glob("step-*"):
        checkpoint.write_bytes(checkpoint.read_bytes()[:50])
    with pytest.raises(RunError, match="every checkpoint is damaged"):
        resumed(path, records)


def test_a_flipped_bit_in_a_checkpoint_is_found(tmp_path: Path, records: TensorRecords) -> None:
    path = tmp_path / "run"
    started(path, records)
    (only,) = (path / "private").glob("step-*")
    data = bytearray(only.read_bytes())
    data[-1] ^= 1
    only.write_bytes(bytes(data))
    with pytest.raises(RunError, match="damaged"):
        resumed(path, records)


def test_charges_removed_from_the_end_are_found(tmp_path: Path, records: TensorRecords) -> None:
    path = tmp_path / "run"
    first = started(path, records)
    for _ in range(3):
        first.advance(cross_entropy)
    save(first, RunDir.open(path))
    lines = (path / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (path / "ledger.jsonl").write_bytes(b"".join(lines[:-2]))
    with pytest.raises(RunError, match="charges were removed"):
        resumed(path, records)


def test_a_disk_that_fills_up_leaves_a_run_that_can_be_resumed(
    tmp_path: Path, records: TensorRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "run"
    recipe = small_recipe()
    steps = started(path, records)
    steps.advance(cross_entropy)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match="--resume"):
        steps.advance(cross_entropy)
    with pytest.raises(RunError, match="--resume"):
        save(steps, RunDir.open(path))
    monkeypatch.undo()
    result = fit(small_model(), records, recipe=recipe, out=path, resume=True)
    unbroken = fit(small_model(), records, recipe=recipe, out=tmp_path / "unbroken")
    assert _hash(result) == _hash(unbroken)


def _hash(result: Result) -> str:
    return str(result.certificate["weights_sha256"])


def test_an_interrupted_step_cannot_be_taken_again_without_resuming(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(steps.state.optimizer), "apply", interrupt)
        with pytest.raises(KeyboardInterrupt):
            steps.advance(cross_entropy)
    with pytest.raises(RunError, match="interrupted"):
        steps.advance(cross_entropy)


def test_a_foreign_key_is_refused(tmp_path: Path, records: TensorRecords) -> None:
    path = tmp_path / "run"
    started(path, records).advance(cross_entropy)
    key = path / "private" / "key.json"
    values = json.loads(key.read_bytes())
    key.write_text(json.dumps({**values, "key": "00" * 32}))
    with pytest.raises(RunError, match="not the one the ledger"):
        resumed(path, records)


def test_what_the_library_does_not_know_is_never_replayed(
    tmp_path: Path, records: TensorRecords
) -> None:
    for name, changes in (("loss", {"repeatable": False}), ("records", {})):
        data = records if name == "loss" else DatasetRecords(ListOf(records))
        run = RunDir.create(tmp_path / name)
        first = assemble(small_model(), data, small_recipe(), run, Facts(), **changes)
        first.advance(cross_entropy)
        again = assemble(small_model(), data, small_recipe(), run, Facts(), resume=True, **changes)
        assert again.ledger.entries[-1].body["replay"] is False
        assert again.remaining == 19


class ListOf(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, records: TensorRecords) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._records.features[index], self._records.labels[index]


def test_lost_checkpoints_stop_a_run_that_has_spent(tmp_path: Path, records: TensorRecords) -> None:
    path = tmp_path / "run"
    started(path, records).advance(cross_entropy)
    for checkpoint in (path / "private").glob("step-*"):
        checkpoint.unlink()
    with pytest.raises(RunError, match="checkpoints are gone"):
        resumed(path, records)
