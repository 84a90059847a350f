"""An append-only, hash-chained record of everything that was released, written ahead.

One JSON line per entry. Each line carries the hash of the line before it, and is on disk before
the update that it pays for is applied, so a run that is killed at any instant has paid for at
least what it did.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dp_accounting import DpEvent

from tacit.errors import RESUME, LedgerError, RunError
from tacit.privacy import events

GENESIS = "0" * 64
Json = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One line: its number, its kind, what it says, and the hash that the next one must name."""

    number: int
    kind: str
    body: Json
    hash: str


class Ledger:
    """A ledger open for writing.

    `charge` returns only after the entry has reached the disk.
    """

    def __init__(self, path: Path, entries: list[Entry], file: IO[bytes]) -> None:
        self._path = path
        self._entries = entries
        self._file = file

    @classmethod
    def create(cls, path: Path, header: Json) -> Ledger:
        """Start a ledger; `header` says what is promised. Refuses to overwrite."""
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
            file = _appending(path)
        except FileExistsError:
            raise RunError(f"{path} exists; choose another directory or resume the run") from None
        ledger = cls(path, [], file)
        ledger.append("promise", header)
        return ledger

    @classmethod
    def resume(cls, path: Path) -> Ledger:
        """Continue a ledger after checking its whole chain.

        A last line that a crash left incomplete is removed. Any other damage is an error.
        """
        repair(path)
        entries = read(path)
        return cls(path, entries, _appending(path))

    @property
    def head(self) -> str:
        """The hash of the last entry."""
        return self._entries[-1].hash if self._entries else GENESIS

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries so far."""
        return tuple(self._entries)

    def append(self, kind: str, body: Json) -> Entry:
        """Write one entry through to the disk."""
        number = len(self._entries)
        line = json.dumps(
            {"entry": number, "kind": kind, "after": self.head, **body}, separators=(",", ":")
        ).encode()
        start = os.fstat(self._file.fileno()).st_size
        try:
            written = self._file.write(line + b"\n")
            if written != len(line) + 1:
                raise OSError(28, "only part of the entry was written")
            os.fsync(self._file.fileno())
        except OSError as error:
            self._cut_back(start)
            raise RunError(
                f"{self._path}: cannot write ({error.strerror}). Nothing unpaid was applied; make"
                f" room and continue with {RESUME}"
            ) from error
        entry = Entry(number, kind, body, _digest(line))
        self._entries.append(entry)
        return entry

    def charge(self, step: int, generation: int, event: DpEvent) -> Entry:
        """Pay for one step, before it happens."""
        return self.append(
            "charge", {"step": step, "generation": generation, "event": events.to_json(event)}
        )

    def close(self) -> None:
        """Close the file; entries stay readable."""
        self._file.close()

    def _cut_back(self, size: int) -> None:
        try:
            os.ftruncate(self._file.fileno(), size)
        except OSError:
            return  # `resume` cuts the torn line instead.


def repair(path: Path) -> None:
    """Remove a last line that a crash left incomplete: torn, filled with zeros, or empty.

    `Ledger.append` had not returned for such a line, so nothing that it charges was applied. A
    complete line that is wrong is left for `read` to refuse.
    """
    data = _read_bytes(path)
    whole = _complete(data)
    if not whole:
        raise LedgerError(f"{path} has no complete entry; start the run again elsewhere")
    if len(whole) < len(data):
        try:
            with open(path, "r+b") as file:
                file.truncate(len(whole))
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"{path}: cannot repair the ledger ({error.strerror})") from error


def read(path: Path) -> list[Entry]:
    """All entries of a ledger, the chain verified; any damage is an error."""
    data = _read_bytes(path)
    if not data or data != _complete(data):
        raise LedgerError(
            f"{path} ends in the middle of an entry; the run was cut off: continue it with"
            f" {RESUME}, or do not rely on it"
        )
    return list(_parse(path, data))


def spent(entries: list[Entry]) -> DpEvent:
    """Everything that the ledger charges, as one event."""
    return events.composed(
        [events.from_json(entry.body["event"]) for entry in entries if entry.kind == "charge"]
    )


def _complete(data: bytes) -> bytes:
    """`data` without its last line, if that is torn, filled with zeros, or empty."""
    start = data.rfind(b"\n", 0, len(data) - 1) + 1
    last = data[start:]
    torn = not last.endswith(b"\n") or b"\0" in last or not last.strip()
    return data[:start] if torn else data


def _appending(path: Path) -> IO[bytes]:
    return open(path, "ab", buffering=0)


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot read the ledger ({error.strerror})") from error


def _parse(path: Path, data: bytes) -> Iterator[Entry]:
    previous = GENESIS
    for number, line in enumerate(data.splitlines()):
        try:
            body = json.loads(line)
            named = (body.pop("entry"), body.pop("after"))
            kind = body.pop("kind")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise LedgerError(f"{path}: line {number + 1} is not a ledger entry") from error
        if named != (number, previous):
            raise LedgerError(
                f"{path}: line {number + 1} does not follow the line before it; entries were"
                " removed, edited or reordered, so nothing can be certified from this ledger"
            )
        previous = _digest(line)
        yield Entry(number, kind, body, previous)
