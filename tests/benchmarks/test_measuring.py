"""Measurements: kept as soon as they are made, not made twice, and gone when they are stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from accuracy_suite import measure, stored
from accuracy_suite.command import resumable

QUICK = "digits --set training.epochs=1 --set model.name=linear"
LONG = "digits --set method.name=plain --set training.epochs=100000"
STARTED = """
import sys
from pathlib import Path
import accuracy
from accuracy_suite import stored
stored.RESULTS = Path(sys.argv[1])
accuracy.PAGES["test"] = [sys.argv[2]]
accuracy.write_all = lambda: None
sys.argv = ["accuracy", "test", "--seeds", "2", "--jobs", "2", "--runs", sys.argv[3]]
if __name__ == "__main__":
    accuracy.main()
"""


def test_runs_are_kept_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "RESULTS", tmp_path / "results")
    plain = "digits --set method.name=plain --set training.epochs=1"

    def again() -> list[stored.Run]:
        measure.measure("page", [QUICK, plain], 1, jobs=1, data_dir=None, runs=tmp_path / "runs")
        return stored.stored("page")

    private, open_one = sorted(again(), key=lambda run: run["relation"] is None)
    assert private["relation"] == "add-or-remove-one"
    assert 0 < private["proven"]["add-or-remove-one"] <= 3.0
    assert private["steps"] > 0 and private["noise"] > 0 and 0 < private["accuracy"] <= 1
    assert private["threads"] >= 1 and "cores" in private["machine"]
    assert (open_one["proven"], open_one["claimed"], open_one["noise"]) == ({}, None, None)
    assert stored.is_stored("page", QUICK, 0) and not stored.is_stored("page", QUICK, 1)
    before = (tmp_path / "results" / "page.json").stat().st_mtime_ns
    assert len(again()) == 2
    assert (tmp_path / "results" / "page.json").stat().st_mtime_ns == before


def test_a_finished_run_that_was_not_kept_is_kept_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "RESULTS", tmp_path / "results")
    measure.measure("page", [QUICK], 1, jobs=1, data_dir=None, runs=tmp_path / "runs")
    (ledger,) = (tmp_path / "runs").rglob("ledger.jsonl")
    before = ledger.stat().st_mtime_ns
    first = json.loads((tmp_path / "results" / "page.json").read_text())
    (tmp_path / "results" / "page.json").unlink()
    measure.measure("page", [QUICK], 1, jobs=1, data_dir=None, runs=tmp_path / "runs")
    assert json.loads((tmp_path / "results" / "page.json").read_text()) == first
    assert ledger.stat().st_mtime_ns == before


def test_a_newer_form_of_a_recipe_replaces_the_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    for digest in ("old", "new"):
        stored.add("page", {"recipe": "a", "seed": 0, "recipe_digest": digest})
    stored.add("page", {"recipe": "a", "seed": 1, "recipe_digest": "new"})
    assert [run["recipe_digest"] for run in stored.stored("page")] == ["new", "new"]


def test_an_interruption_says_how_to_go_on_and_what_follows_is_done() -> None:
    done: list[str] = []
    with (
        pytest.raises(SystemExit, match="goes on where it stopped"),
        resumable(lambda: done.append("pages")),
    ):
        signal.raise_signal(signal.SIGTERM)
    assert done == ["pages"]
    with resumable(lambda: done.append("again")):
        done.append("work")
    assert done == ["pages", "work", "again"]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are read from /proc")
def test_nothing_runs_on_when_it_is_stopped(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(STARTED)
    here = Path(__file__).parents[2]
    paths = os.pathsep.join([str(here / "benchmarks"), str(here)])
    command = [sys.executable, str(script), str(tmp_path), LONG, str(tmp_path / "runs")]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            deadline = time.monotonic() + 120
            while len(list((tmp_path / "runs").rglob("ledger.jsonl"))) < 2:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
            children = _children(process.pid)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=20)
        finally:
            process.kill()
    assert len(children) >= 2
    assert "the same command goes on where it stopped" in said
    assert process.returncode == 1
    deadline = time.monotonic() + 10  # the last of them ends when it sees that its parent did
    while any(_runs(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [child for child in children if _runs(child)] == []


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
