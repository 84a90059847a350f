"""Tuning is applied by the command line, and by nobody who did not ask for it."""

import os
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

from tacit import process_tuning
from tacit.errors import RunError
from tacit.process_tuning import start_again_if_better, tune_process, usable_processors
from tacit.progress import Watcher
from tacit.sweep import train_all

FAULTS = """
# glibc needs some rounds until its lists of small free pieces, which alignment leaves, are full
import resource, sys, torch
if sys.argv[1] == "tuned":
    from tacit import tune_process
    assert tune_process().allocator
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        buffers = [torch.empty(10_000_000).fill_(1.0) for _ in range(2)]
        buffers.clear()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print([faults() for _ in range(4)][-1])
"""


def child(code: str, *arguments: str, **environment: str) -> str:
    kept = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, env={**kept, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is part of glibc")
def test_freed_buffers_are_kept_once_tuned() -> None:
    assert int(child(FAULTS, "plain")) > 1_000
    assert int(child(FAULTS, "tuned")) < 200


AGAIN = """
import os, sys
from tacit.process_tuning import start_again_if_better
print("started", flush=True)
start_again_if_better()
print(sys.argv[1:], os.environ["GLIBC_TUNABLES"], "torch" in sys.modules)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the settings are glibc's")
def test_a_program_starts_again_once_with_the_same_arguments() -> None:
    none, other = "glibc.malloc.tcache_count=0", "glibc.malloc.check=0"
    arguments = ("a b", "--c")
    found = child(AGAIN, *arguments, GLIBC_TUNABLES=other)
    assert found.splitlines() == ["started", "started", f"['a b', '--c'] {other}:{none} False"]
    again = child(AGAIN, *arguments, GLIBC_TUNABLES=other, TACIT_STARTED_AGAIN="yes")
    assert again.splitlines() == ["started", f"['a b', '--c'] {other} False"]
    for decided in (none, "glibc.malloc.tcache_count=7"):
        found = child(AGAIN, *arguments, GLIBC_TUNABLES=decided)
        assert found.splitlines() == ["started", f"['a b', '--c'] {decided} False"]


def test_the_command_is_what_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr("tacit.__main__.start_again_if_better", lambda: started.append("again"))
    monkeypatch.setattr("tacit.cli.main", lambda: started.append("command"))
    (command,) = entry_points(group="console_scripts", name="tacit")
    command.load()()
    assert started == ["again", "command"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Commands that would have been started in place of this process, whose environment is bare."""
    commands: list[Sequence[str]] = []
    monkeypatch.setattr("os.execve", lambda _, command, __: commands.append(command))
    for name in ("GLIBC_TUNABLES", "TACIT_STARTED_AGAIN"):
        monkeypatch.delenv(name, raising=False)
    return commands


def test_without_glibc_nothing_is_started_again(
    started: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: str) -> str:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr("os.confstr", unknown, raising=False)
    start_again_if_better()
    assert not started


@pytest.mark.parametrize(
    ("given", "again"), [([], False), (["-"], False), (["-m", "tacit"], True), (["tacit"], True)]
)
def test_what_cannot_be_read_twice_is_not_started_again(
    given: list[str], again: bool, started: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.confstr", lambda _: "glibc 2.36", raising=False)
    monkeypatch.setattr("sys.orig_argv", ["python", *given])
    start_again_if_better()
    assert started == ([[sys.executable, *given]] if again else [])


@dataclass(frozen=True)
class CountedFaults:
    """A task that tells by its failure how often the kernel had to hand out pages anew."""

    name: str = "faults"
    kind: str = "faults"
    finished: bool = False

    def do(self, data_dir: Path | None, watcher: Watcher) -> None:
        def faults() -> int:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(5):
                buffers = [torch.empty(10_000_000).fill_(1.0) for _ in range(2)]
                buffers.clear()
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        raise RunError(str([faults() for _ in range(4)][-1]))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is part of glibc")
def test_trainings_in_processes_of_their_own_are_tuned_too() -> None:
    with pytest.raises(RunError) as failed:
        train_all([CountedFaults("a"), CountedFaults("b")], jobs=2)
    found = re.findall(r"^ +[ab]: (\d+)$", str(failed.value), re.MULTILINE)
    assert len(found) == 2
    assert all(int(faults) < 200 for faults in found)


def test_importing_the_library_tunes_nothing() -> None:
    code = """
import os, tacit, tacit.loop, tacit.commands.train
print(os.environ.get("OMP_NUM_THREADS"), "tacit.process_tuning" in __import__("sys").modules)
"""
    assert child(code) == "None False"


def test_threads_are_limited_before_torch_is_loaded() -> None:
    code = """
import os, sys
from tacit import tune_process
threads = tune_process().threads
assert "torch" not in sys.modules
print(os.environ["OMP_NUM_THREADS"], threads)
"""
    threads = str(usable_processors())
    assert child(code) == f"{threads} {threads}"
    assert child(code, OMP_NUM_THREADS="7") == f"7 {threads}"


def test_a_share_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(process_tuning, "_QUOTA", quota)
    whole = usable_processors()
    for text, expected in (("50000 100000", 1), ("max 100000", whole), ("9900000 100000", whole)):
        quota.write_text(text + "\n", encoding="ascii")
        assert usable_processors() == expected


def test_threads_are_never_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(process_tuning, "usable_processors", lambda: 2)
    try:
        for given, expected in ((1, 1), (5, 2)):
            torch.set_num_threads(given)
            assert tune_process().threads == 2
            assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


def test_a_c_library_without_the_setting_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert tune_process().allocator is False
