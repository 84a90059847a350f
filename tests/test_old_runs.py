"""Run directories of version 0.1.0, which logged the sums of correlated noise only."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from small_runs import small_model, small_recipe

import tacit
from tacit import verify
from tacit.data.batches import TensorRecords
from tacit.errors import LedgerError, RunError
from tacit.privacy import ledger
from tacit.rundir import RunDir

OLD = Path(__file__).parent / "old_runs"


@pytest.fixture
def old(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return shutil.copytree(OLD / request.param, tmp_path / "run")


@pytest.mark.parametrize("old", ["finished"], indirect=True)
def test_a_finished_run_verifies_as_before(old: Path) -> None:
    before = (old / "certificate.json").read_bytes()
    assert verify.check(old).certificate["charges"] == 20
    assert (old / "certificate.json").read_bytes() == before


@pytest.mark.parametrize("old", ["dpsgd"], indirect=True)
def test_an_unfinished_run_goes_on_under_a_new_key(
    old: Path, records: TensorRecords, without_figures: None
) -> None:
    tacit.fit(small_model(), records, recipe=small_recipe(), out=old, resume=True)
    entries = ledger.read(old / "ledger.jsonl")
    (line,) = [entry.body for entry in entries if entry.kind == "resume"]
    assert (line["generation"], line["replay"]) == (1, False)
    assert line["key"] != entries[0].body["key"]
    charged = [e.body for e in entries if e.kind == "charge"]
    steps = [(c["generation"], c["step"]) for c in charged]
    assert steps == [(0, 0), (0, 1), (0, 2), *((1, step) for step in range(17))]
    assert RunDir.open(old).finished


@pytest.mark.parametrize("old", ["banded"], indirect=True)
def test_an_unfinished_run_with_correlated_noise_is_refused(
    old: Path, records: TensorRecords
) -> None:
    recipe = small_recipe(method="dpftrl", mechanism="banded")
    before = (old / "ledger.jsonl").read_bytes()
    with pytest.raises(RunError, match=r"noise is correlated .* earlier version"):
        tacit.fit(small_model(), records, recipe=recipe, out=old, resume=True)
    assert (old / "ledger.jsonl").read_bytes() == before


@pytest.mark.parametrize("old", ["finished"], indirect=True)
@pytest.mark.parametrize(("change", "accepted"), [(0.0002, True), (-0.0002, False)])
def test_a_certificate_of_a_less_tight_accountant_verifies_and_one_that_promises_more_does_not(
    old: Path, change: float, accepted: bool
) -> None:
    path = old / "certificate.json"
    stored = json.loads(path.read_bytes())
    given = stored["guarantee"]["epsilon"]
    then = round(given + change, 4)
    for each in (path, old / "certificate.txt"):
        each.write_text(each.read_text("utf-8").replace(str(given), str(then)), "utf-8")
    with nullcontext() if accepted else pytest.raises(LedgerError, match="guarantee"):
        verify.check(old)


@pytest.mark.parametrize("old", ["finished"], indirect=True)
def test_a_trade_off_curve_that_promises_more_is_found(old: Path) -> None:
    path = old / "certificate.json"
    stored = json.loads(path.read_bytes())
    stored["trade_off"][10][1] += 1e-4
    path.write_text(json.dumps(stored, ensure_ascii=False, indent=1), "utf-8")
    with pytest.raises(LedgerError, match="trade_off"):
        verify.check(old)
