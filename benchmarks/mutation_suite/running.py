"""Runs tests against mutants: one process has everything but tacit loaded and forks for each."""

from __future__ import annotations

import importlib
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from mutation_suite.mutants import Mutant

_HEAVY = ("scipy.signal", "scipy.stats", "dp_accounting.pld", "hypothesis", "mpmath", "pydantic")
_KEPT = ("tacit", "tests", "pyproject.toml", "benchmarks", "docs", "README.md")
_GRACE, _SLOWER = 10.0, 4.0
_MOST_MEMORY = 8 << 30


@contextmanager
def workspace(root: Path, folder: Path) -> Iterator[Path]:
    """A copy of the project, from which tests then import."""
    for name in _KEPT:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copy(source, folder / name)
    before, path = Path.cwd(), list(sys.path)
    os.chdir(folder)
    sys.path[:0] = [str(folder), str(folder / "tests")]
    torch.set_num_threads(1)
    for name in _HEAVY:
        importlib.import_module(name)
    try:
        yield folder
    finally:
        os.chdir(before)
        sys.path[:] = path


def baseline(folder: Path, file: str, tests: Sequence[str]) -> float:
    """Seconds that the tests of a file take when nothing is wrong."""
    for keep_bytecode in (True, False):
        started = time.monotonic()
        if _tested(folder, tests, 3600.0, keep_bytecode) != "survived":
            raise RuntimeError(f"the tests of {file} fail without any mutant: {' '.join(tests)}")
    path = folder / file
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
    return time.monotonic() - started


def outcome(folder: Path, mutant: Mutant, tests: Sequence[str], normal: float) -> tuple[str, float]:
    """Whether tests notice the mutant: killed, timed_out or survived; and how long they took."""
    path = folder / mutant.file
    original = path.read_text("utf-8")
    path.write_text(mutant.code, encoding="utf-8")
    started = time.monotonic()
    try:
        found = _tested(folder, tests, _GRACE + _SLOWER * normal)
    finally:
        path.write_text(original, encoding="utf-8")
    return found, time.monotonic() - started


def _tested(folder: Path, tests: Sequence[str], seconds: float, keep_bytecode: bool = False) -> str:
    """What becomes of tests in a forked process that gets so much time."""
    child = os.fork()
    if child == 0:
        _test_and_leave(folder, tests, keep_bytecode)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "survived" if status == 0 else "killed"
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timed_out"


def _test_and_leave(folder: Path, tests: Sequence[str], keep_bytecode: bool) -> None:
    """Stops at the first failure. Memory is limited: some mutants would take all of it."""
    code = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
        sys.dont_write_bytecode = not keep_bytecode
        log = os.open(folder / "tests.log", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for stream in (0, 1, 2):
            os.dup2(log, stream)
        given = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--tb=short"]
        code = int(pytest.main([*given, f"--basetemp={folder / 'temporary'}", *tests]))
    finally:
        os._exit(code)
