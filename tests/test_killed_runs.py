"""Runs that are killed go on, and end as if nothing had happened."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tacit.privacy import ledger
from tacit.rundir import RunDir

CHILD = """
import sys, torch
sys.path.insert(0, sys.argv[2])
from small_runs import small_model, small_recipe
import tacit.journal, tacit.loop
from tacit.data.batches import DatasetRecords, TensorRecords
tacit.journal._CHECKPOINT_SECONDS = 0.05
tacit.loop.write_report = lambda run: (run / "report.html").write_text("")  # drawing takes long
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(11)
x = torch.randn(300, 6, generator=generator)
records = TensorRecords(x, x[:, :3].argmax(1))
kind = sys.argv[4]
chosen = {"optimizer": kind} if kind in ("sgd", "adam") else {"method": "dpftrl", "mechanism": kind}
if kind == "amplified":
    chosen["bands"] = 3
if kind == "dpsgd-br":
    chosen = {"method": kind, "validation_batch_size": 30, "beta": 0.0, "slow": 0.999}
    chosen |= {"fast": 0.999, "feedback_batch_size": 30, "feedback_noise": 9.0}
recipe = small_recipe(**chosen, epochs=20, momentum=0.9, average=0.9)
out, resume = sys.argv[1], sys.argv[3] == "resume"
tacit.loop.fit(small_model(), records, recipe=recipe, out=out, resume=resume)
"""


def run_child(out: Path, mode: str, optimizer: str) -> subprocess.Popen[bytes]:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", CHILD, str(out), here, mode, optimizer]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "tree", "banded", "amplified", "dpsgd-br"])
def test_killed_at_any_instant_it_ends_with_the_same_bits(tmp_path: Path, optimizer: str) -> None:
    whole = run_child(tmp_path / "whole", "start", optimizer)
    assert whole.wait() == 0
    expected = RunDir.open(tmp_path / "whole").weights_hash()
    out, kills = tmp_path / "killed", 0
    chance = random.Random(optimizer)
    for _ in range(3):
        started = (out / "ledger.jsonl").exists() and (out / "private" / "key.json").exists()
        child = run_child(out, "resume" if started else "start", optimizer)
        charges = _charges(out)
        while child.poll() is None and _charges(out) < charges + 1 + chance.randrange(50):
            time.sleep(0.002)
        child.send_signal(signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
        if (out / "weights.safetensors").exists():
            break
    final = run_child(out, "resume", optimizer)
    assert final.wait() == 0, final.stderr.read().decode() if final.stderr else ""
    assert kills >= 2
    run = RunDir.open(out)
    assert run.weights_hash() == expected
    charged = [e.body["step"] for e in ledger.read(run.ledger) if e.kind == "charge"]
    assert sorted(charged) == list(range(200))
    assert run.finished


def _charges(out: Path) -> int:
    path = out / "ledger.jsonl"
    return path.read_bytes().count(b'"charge"') if path.exists() else 0
