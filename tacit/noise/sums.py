"""The log of noised sums: after a crash, a repeated step must repeat its releases exactly."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import IO

from tacit.errors import RESUME, ReplayError, RunError

_LINE = re.compile(rb"(\d+) ([0-9a-f]{64}) ([ -~]+)\n")
Release = tuple[str, str]
"""The purpose of a noised sum and its name (`RandomSource.address`)."""


class SumLog:
    """The sums that were noised under one key, in order.

    Guarantee: `enter` returns only if the log holds this sum at this position of the step, or if
    the step had not got that far before. Otherwise it raises `ReplayError` and no noise is drawn.
    So no step noises two different sums under one key, whatever changed between a crash and the
    resumption. Proof: docs/proofs/resume.md.

    An entry reaches the operating system before noise is drawn, which is enough if the process is
    killed. It reaches the disk with `sync`, which must be called before anything computed from the
    noised sum leaves the process. Names are keyed hashes; the file is in the private part of the
    run directory and is erased with it.

    >>> log = SumLog()
    >>> log.begin(0)
    >>> log.enter("gradient noise 0", "ab" * 32)
    """

    def __init__(self, path: Path | None = None, *, replayed: bool = False) -> None:
        """Start an empty log at `path`, or continue the one that is there.

        Args:
            path: The file. Without one, the log is not kept beyond the process.
            replayed: Read the existing file and continue after its last complete entry.
        """
        self._path = path
        self._releases: dict[int, list[Release]] = {}
        self._step = self._last = -1
        self._position = 0
        self._file: IO[bytes] | None = None
        self._unsynced = False
        if path is not None:
            self._open(path, replayed)

    def begin(self, step: int) -> None:
        """The sums entered from now on belong to this step; earlier steps do not come back."""
        self._step, self._position = step, 0
        self._releases = {s: known for s, known in self._releases.items() if s >= step}

    def enter(self, purpose: str, name: str) -> None:
        """Record a sum that is about to be noised, or check it against the record of this step."""
        known = self._releases.setdefault(self._step, [])
        if self._position < len(known):
            if known[self._position] != (purpose, name):
                self._refuse("for another sum")
        elif self._step < self._last:
            self._refuse("for fewer sums")
        else:
            self._write(f"{self._step} {name} {purpose}\n".encode("ascii"))
            known.append((purpose, name))
            self._last = self._step
        self._position += 1

    def sync(self) -> None:
        """Return when every entry is on disk."""
        if self._file is not None and self._unsynced:
            try:
                os.fsync(self._file.fileno())
            except OSError as error:
                raise self._failed(error) from error
            self._unsynced = False

    def close(self) -> None:
        """Put every entry on disk and close the file."""
        self.sync()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, path: Path, replayed: bool) -> None:
        try:
            size = self._read(path) if replayed else 0
            self._file = open(path, "ab", buffering=0, opener=_private)  # noqa: SIM115 - kept open
            self._file.truncate(size)
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failed(error) from error

    def _read(self, path: Path) -> int:
        """Read the complete entries; returns their length in bytes.

        A tail that a crash left incomplete was never synced, so nothing computed from it left the
        process, and it is ignored.
        """
        if not path.exists():
            raise ReplayError(f"{path}: the log of noised sums is missing")
        data, size = path.read_bytes(), 0
        for line in data.splitlines(keepends=True):
            found = _LINE.fullmatch(line)
            if found is None:
                break
            self._last = int(found[1])
            release = found[3].decode(), found[2].decode()
            self._releases.setdefault(self._last, []).append(release)
            size += len(line)
        if _LINE.search(data, size):
            raise ReplayError(f"{path}: the log of noised sums is damaged")
        return size

    def _write(self, line: bytes) -> None:
        if self._file is None:
            return
        try:
            if self._file.write(line) != len(line):
                raise OSError(28, "only part of the entry was written")
        except OSError as error:
            raise self._failed(error) from error
        self._unsynced = True

    def _failed(self, error: OSError) -> RunError:
        return RunError(
            f"{self._path}: cannot write the log of noised sums ({error.strerror}). No noise was"
            f" drawn without an entry; make room and continue with {RESUME}"
        )

    def _refuse(self, how: str) -> None:
        raise ReplayError(
            f"step {self._step} was noised before the run was interrupted, {how}: something outside"
            " the recipe has changed since (the model's code, a library, the processor), so the"
            " step cannot be repeated"
        )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
