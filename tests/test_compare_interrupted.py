"""Comparisons whose trainings are stopped, killed or fail: what is left is kept."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import written_recipe

from tacit import compare as module
from tacit.compare import compare
from tacit.errors import RunError
from tacit.rundir import RunDir

pytestmark = pytest.mark.usefixtures("without_figures")


def test_an_interrupted_run_is_resumed(tmp_path: Path) -> None:
    class Interrupting:
        """Stops the training from outside after its first step."""

        def __enter__(self) -> "Interrupting":
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def expect(self, *_: object) -> None:
            return None

        started = ended = expect

        def show(self, *_: object) -> None:
            raise KeyboardInterrupt

    small = written_recipe(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        compare([small], seeds=1, out=tmp_path / "out", board=Interrupting())
    (run,) = (tmp_path / "out" / "runs").iterdir()
    assert not RunDir(run).finished
    with pytest.raises(RunError, match="not finished"):
        compare([str(run)], out=tmp_path / "other")
    compare([small], seeds=1, out=tmp_path / "out")
    kinds = [json.loads(line)["kind"] for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert kinds.count("promise") == kinds.count("resume") == 1 and kinds.count("charge") == 5


def test_one_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text('[data]\nname = "digits"\n[training]\nbatch_size = 5000\n')
    with pytest.raises(RunError, match=r"1 of 2 trainings failed(.|\n)*bad-.*larger than"):
        compare([str(bad), written_recipe(tmp_path)], out=tmp_path / "out")
    (run,) = (tmp_path / "out").rglob("ledger.jsonl")
    assert RunDir(run.parent).finished and "small-" in run.parent.name


def start_command(line: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    code = "from tacit.cli import main; main()"
    here = str(Path(module.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", code, *line],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": here},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_several_at_once_are_killed_and_go_on(tmp_path: Path) -> None:
    written_recipe(tmp_path, epochs=50.0)
    line = ["compare", "small.toml", "--seeds", "2", "--jobs", "2", "--json"]
    first = start_command(line, tmp_path)
    runs = tmp_path / "comparison" / "runs"
    deadline = time.monotonic() + 100
    while len(list(runs.glob("*/ledger.jsonl"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    started = sorted(path.name for path in runs.iterdir())
    wait_until_free(runs, deadline)
    assert len(started) == 2 and not all(RunDir(path).finished for path in runs.iterdir())
    found = compare([written_recipe(tmp_path, epochs=50.0)], seeds=2, jobs=2, out=runs.parent)
    (group,) = found.groups
    assert group.seeds == [0, 1] and group.steps == 103
    assert sorted(path.name for path in runs.iterdir()) == started


def wait_until_free(runs: Path, deadline: float) -> None:
    """The trainings notice that nobody listens any more."""
    for path in runs.iterdir():
        while time.monotonic() < deadline:
            try:
                if not (path / "private").exists():
                    break
                RunDir.continued(path)._held.close()
                break
            except RunError:
                time.sleep(0.05)
        else:
            raise AssertionError(f"{path} is still being trained")
