"""A resumption that is killed itself, at every line that writes; and ledgers that a crash tore."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import prepared, save, small_model, small_recipe, written_recipe
from typer.testing import CliRunner

import tacit
from tacit import verify
from tacit.cli import app
from tacit.data.batches import TensorRecords
from tacit.errors import RunError
from tacit.losses import cross_entropy
from tacit.privacy import ledger
from tacit.rundir import RunDir
from tacit.train import recipe_for, train

DRIVER = """
import json, os, shutil, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[2])
from small_runs import prepared, save, small_model, small_recipe
from tacit import assemble
from tacit.data.batches import TensorRecords
from tacit.losses import cross_entropy
from tacit.rundir import RunDir

WRITING = {"_source", "_new_log", "_open", "_read", "save_key", "write", "append", "repair"}
base, x = Path(sys.argv[1]), torch.randn(300, 6, generator=torch.Generator().manual_seed(11))
records = TensorRecords(x, x[:, :3].argmax(1))
changed = TensorRecords(x + 1e-3, records.labels)
steps = prepared(base / "start", records, small_recipe())
save(steps, RunDir.open(base / "start"))
for _ in range(3):
    steps.advance(cross_entropy)
steps.close()

def resumed(out, data):
    run = RunDir.continued(out)
    return assemble.assemble(
        small_model(), data, small_recipe(), run, assemble.Facts(), resume=True
    )

def killed_at(line, out):
    left = line
    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_name not in WRITING or "tacit" not in frame.f_code.co_filename:
            return None if event == "call" else trace
        if event == "line":
            if left == 0:
                os._exit(9)
            left -= 1
        return trace
    sys.settrace(trace)
    resumed(out, changed)
    os._exit(0)

found, line = [], 0
while True:
    out = base / f"killed-{line}"
    shutil.copytree(base / "start", out)
    child = os.fork()
    if child == 0:
        killed_at(line, out)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
    key = json.loads((out / "private" / "key.json").read_bytes())["generation"]
    named = b'"resume"' in (out / "ledger.jsonl").read_bytes()
    again = resumed(out, changed)
    replay = again.ledger.entries[-1].body["replay"]
    again.advance(cross_entropy)
    body = [e.body for e in again.ledger.entries if e.kind == "charge"]
    charged = [(charge["generation"], charge["step"]) for charge in body]
    found.append((key, named, replay, again.remaining, charged))
    again.close()
    shutil.rmtree(out)
    line += 1
print(json.dumps(found))
"""


def test_a_resumption_killed_at_any_line_can_be_resumed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DRIVER, str(tmp_path), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) > 40
    assert {(key, named) for key, named, *_ in found} == {(0, False), (1, False), (1, True)}
    for _, named, replay, remaining, charges in found:
        assert replay is named
        assert remaining == 20 - 4
        assert charges == [[0, 0], [0, 1], [0, 2], [1, 0]]


TAILS = [b'{"entry":9,"kind":"char', bytes(300), bytes(120) + b"\n", b"\n"]
CRASHES = ["torn", "zeros", "zeros in a line", "empty"]


def torn(out: Path, tail: bytes) -> None:
    with open(out / "ledger.jsonl", "ab") as file:
        file.write(tail)


@pytest.mark.parametrize("tail", TAILS, ids=CRASHES)
def test_fit_repairs_a_ledger_that_a_crash_tore(
    tmp_path: Path, records: TensorRecords, without_figures: None, tail: bytes
) -> None:
    out, recipe = tmp_path / "run", small_recipe()
    steps = prepared(out, records, recipe)
    save(steps, RunDir.open(out))
    for _ in range(3):
        steps.advance(cross_entropy)
    del steps
    torn(out, tail)
    result = tacit.fit(small_model(), records, recipe=recipe, out=out, resume=True)
    whole = tacit.fit(small_model(), records, recipe=recipe, out=tmp_path / "whole")
    assert result.certificate["weights_sha256"] == whole.certificate["weights_sha256"]
    assert result.certificate["charges"] == 20


@pytest.mark.parametrize("tail", TAILS, ids=CRASHES)
def test_the_command_repairs_a_ledger_that_a_crash_tore(
    tmp_path: Path, without_figures: None, monkeypatch: pytest.MonkeyPatch, tail: bytes
) -> None:
    out, recipe = tmp_path / "run", recipe_for(written_recipe(tmp_path))

    def killed(*_: object) -> None:
        raise SystemExit(9)

    with monkeypatch.context() as patch:
        patch.setattr("tacit.loop.finish", killed)
        with pytest.raises(SystemExit):
            train(recipe, out=out)
    torn(out, tail)
    done = CliRunner().invoke(app, ["train", "--resume", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert RunDir.open(out).finished
    assert sum(e.kind == "charge" for e in ledger.read(out / "ledger.jsonl")) == 5


@pytest.mark.parametrize("tail", TAILS, ids=CRASHES)
def test_a_finished_run_whose_last_line_was_torn_is_put_right_by_resume(
    tmp_path: Path, records: TensorRecords, without_figures: None, tail: bytes
) -> None:
    out, recipe = tmp_path / "run", small_recipe()
    first = tacit.fit(small_model(), records, recipe=recipe, out=out)
    torn(out, tail)
    with pytest.raises(RunError, match="resume"):
        verify.check(out)
    again = tacit.fit(small_model(), records, recipe=recipe, out=out, resume=True)
    assert again.certificate == first.certificate
    assert verify.check(out)
