"""What lies in a run directory, who may write there, and how a run ends."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from small_runs import RECORDS, small_model, small_recipe

from tacit.assemble import Facts, assemble
from tacit.data.batches import TensorRecords
from tacit.errors import RunError
from tacit.loop import fit
from tacit.losses import cross_entropy
from tacit.rundir import RunDir
from tacit.steps import Steps


def test_a_finished_run_is_returned_as_it_is(tmp_path: Path, records: TensorRecords) -> None:
    recipe = small_recipe()
    done = fit(small_model(), records, recipe=recipe, out=tmp_path / "run")
    before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    again = fit(small_model(), records, recipe=recipe, out=tmp_path / "run", resume=True)
    assert json.dumps(again.certificate) == json.dumps(done.certificate)
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before


def test_an_existing_run_is_never_overwritten(tmp_path: Path, records: TensorRecords) -> None:
    fit(small_model(), records, recipe=small_recipe(), out=tmp_path / "run")
    with pytest.raises(RunError, match="already holds a run"):
        fit(small_model(), records, recipe=small_recipe(), out=tmp_path / "run")


def test_finishing_erases_the_key(tmp_path: Path, records: TensorRecords) -> None:
    fit(small_model(), records, recipe=small_recipe(), out=tmp_path / "run")
    kept = {path.name for path in (tmp_path / "run").iterdir()}
    assert kept == {
        *("recipe.toml", "ledger.jsonl", "metrics.json", "weights.safetensors"),
        *("certificate.json", "certificate.txt", "report.html"),
    }


def test_the_private_part_is_readable_by_its_owner_only(steps: Steps, tmp_path: Path) -> None:
    private = tmp_path / "run" / "private"
    assert private.stat().st_mode & 0o077 == 0
    assert (private / "key.json").stat().st_mode & 0o077 == 0
    assert steps.remaining == 20


def test_two_processes_cannot_share_a_run(tmp_path: Path, records: TensorRecords) -> None:
    first = RunDir.create(tmp_path / "run")
    with pytest.raises(RunError, match="in use"):
        RunDir.create(tmp_path / "run")
    assemble(small_model(), records, small_recipe(), first, Facts())
    with pytest.raises(RunError, match="in use"):
        RunDir.continued(tmp_path / "run")


def test_the_torch_generator_of_the_caller_is_untouched(
    records: TensorRecords, steps: Steps
) -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    steps.advance(cross_entropy)
    assert torch.equal(before, torch.random.get_rng_state())
    assert len(records) == RECORDS


def test_a_crash_while_the_private_part_was_erased_is_finished(
    tmp_path: Path, records: TensorRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is gone, so nothing can be drawn again; weights and ledger are whole."""

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    recipe, out = small_recipe(), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(small_model(), records, recipe=recipe, out=out)
    assert set((out / "private" / "key.json").read_bytes()) == {0}
    run = fit(small_model(), records, recipe=recipe, out=out, resume=True)
    assert not (out / "private").exists()
    assert run.certificate["weights_sha256"] == RunDir.open(out).weights_hash()
