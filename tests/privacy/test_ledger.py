"""The chain of hashes, write-ahead, and every way to damage a ledger."""

import errno
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import LedgerError, RunError
from tacit.privacy import accountants, events, ledger
from tacit.privacy.ledger import Ledger

EVENT = events.poisson(0.1, events.gaussian(1.0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    book = Ledger.create(path, {"title": "test"})
    for step in range(5):
        book.charge(step, 0, EVENT)
    book.append("release", {"weights_sha256": "00"})
    book.close()
    return path


def test_what_was_written_is_read_back(path: Path) -> None:
    entries = ledger.read(path)
    assert [entry.kind for entry in entries] == ["promise", *["charge"] * 5, "release"]
    assert events.leaves(ledger.spent(entries)) == {EVENT: 5}


def test_a_charge_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    book = Ledger.create(tmp_path / "l", {})
    entry = book.charge(0, 0, EVENT)
    assert ledger.read(tmp_path / "l")[-1] == entry


@pytest.mark.parametrize("line", range(6))
def test_a_removed_line_is_found(path: Path, line: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:line] + lines[line + 1 :]))
    with pytest.raises(LedgerError):
        ledger.read(path)


@pytest.mark.parametrize("line", range(6))
def test_an_edited_line_is_found(path: Path, line: int) -> None:
    lines = path.read_bytes().splitlines()
    body = json.loads(lines[line])
    body["step"] = 99
    lines[line] = json.dumps(body).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(LedgerError, match="removed, edited or reordered"):
        ledger.read(path)


def test_reordered_lines_are_found(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2], lines[3] = lines[3], lines[2]
    path.write_bytes(b"".join(lines))
    with pytest.raises(LedgerError):
        ledger.read(path)


def test_a_torn_last_line_is_cut_on_resume_and_an_error_otherwise(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with pytest.raises(LedgerError, match=r"--resume \(in Python: resume=True\)"):
        ledger.read(path)
    book = Ledger.resume(path)
    assert len(book.entries) == 6
    book.charge(5, 0, EVENT)
    assert len(ledger.read(path)) == 7


@pytest.mark.parametrize("tail", [b'{"entry":7', bytes(200), bytes(80) + b"\n", b"\n", b" \n"])
def test_what_a_crash_leaves_after_the_last_entry_is_removed(path: Path, tail: bytes) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    with pytest.raises(LedgerError, match="ends in the middle of an entry"):
        ledger.read(path)
    ledger.repair(path)
    assert path.read_bytes() == whole


def test_a_complete_last_line_that_is_wrong_is_not_removed(path: Path) -> None:
    damaged = path.read_bytes() + b"{}\n"
    path.write_bytes(damaged)
    with pytest.raises(LedgerError, match="not a ledger entry"):
        Ledger.resume(path)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("data", [b"", b'{"entry":0', bytes(100), b"\n"])
def test_a_ledger_without_a_complete_entry_is_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(LedgerError, match="no complete entry"):
        ledger.repair(path)


def test_resume_refuses_a_damaged_middle(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"step":2', b'"step":7'))
    with pytest.raises(LedgerError):
        Ledger.resume(path)


def test_an_existing_ledger_is_never_overwritten(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(RunError, match="exists"):
        Ledger.create(path, {})
    assert path.read_bytes() == before


def test_a_full_disk_leaves_a_ledger_that_can_be_resumed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = Ledger.resume(path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match=r"--resume \(in Python: resume=True\)"):
        book.charge(5, 0, EVENT)
    monkeypatch.undo()
    assert len(book.entries) == 7
    assert Ledger.resume(path).charge(5, 0, EVENT).number == 7


def test_not_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot read"):
        ledger.read(tmp_path / "nothing")
    (tmp_path / "l").write_text("hello\n")
    with pytest.raises(LedgerError, match="line 1"):
        ledger.read(tmp_path / "l")


def test_ten_thousand_steps_are_accounted_for_from_the_ledger(tmp_path: Path) -> None:
    lines, after = [], ledger.GENESIS
    for number in range(10_000):
        body = {"entry": number, "kind": "charge", "after": after, "event": events.to_json(EVENT)}
        lines.append(json.dumps(body).encode())
        after = ledger._digest(lines[-1])
    (tmp_path / "l").write_bytes(b"\n".join(lines) + b"\n")
    spent = ledger.spent(ledger.read(tmp_path / "l"))
    together = accountants.epsilon(events.repeated(EVENT, 10_000), 1e-5)
    assert accountants.epsilon(spent, 1e-5) == together


def test_a_line_is_what_anyone_can_check_without_the_library(path: Path) -> None:
    """JSON in one line, numbered; each names the SHA-256 of the line before, the first 64 zeros."""
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    after = "0" * 64
    kinds = ["promise", *["charge"] * 5, "release"]
    for number, (line, kind) in enumerate(zip(lines, kinds, strict=True)):
        assert list(json.loads(line).items())[:3] == [
            ("entry", number),
            ("kind", kind),
            ("after", after),
        ]
        assert b" " not in line.replace(b"test", b"")
        after = hashlib.sha256(line).hexdigest()
    assert [entry.hash for entry in ledger.read(path)][-1] == Ledger.resume(path).head == after


def test_entries_hold_what_was_written_and_cannot_be_changed(tmp_path: Path) -> None:
    book = Ledger.create(tmp_path / "l", {"title": "test"})
    entry: Any = book.charge(3, 2, EVENT)
    assert (entry.number, entry.kind) == (1, "charge")
    assert entry.body == {"step": 3, "generation": 2, "event": events.to_json(EVENT)}
    assert book.entries == tuple(ledger.read(tmp_path / "l"))
    with pytest.raises(AttributeError):
        entry.number = 0
    book.close()
    assert book.entries[-1] == entry
    with pytest.raises(ValueError, match="closed"):
        book.charge(4, 2, EVENT)


def test_a_ledger_may_be_read_by_others_and_written_by_its_owner(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Ledger.create(tmp_path / "l", {}).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "l").stat().st_mode) == 0o644


class HalfWritten:
    """A file on a disk that is nearly full: only some bytes of a line are taken."""

    def __init__(self, path: Path, taken: int) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - kept open
        self._taken = taken

    def write(self, line: bytes) -> int:
        return self._file.write(line[: self._taken])

    def fileno(self) -> int:
        return self._file.fileno()


@pytest.mark.parametrize("taken", [10, -1, -2])
def test_a_line_that_was_written_in_part_is_taken_back(path: Path, taken: int) -> None:
    whole = path.read_bytes()
    file: Any = HalfWritten(path, taken)
    book = Ledger(path, ledger.read(path), file)
    with pytest.raises(RunError, match="only part of the entry") as raised:
        book.charge(5, 0, EVENT)
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.ENOSPC
    assert path.read_bytes() == whole and len(book.entries) == 7


def test_a_line_that_cannot_be_taken_back_is_cut_on_resume(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    whole = path.read_bytes()
    file: Any = HalfWritten(path, 10)
    book = Ledger(path, ledger.read(path), file)
    monkeypatch.setattr("os.ftruncate", fails)
    with pytest.raises(RunError, match="only part of the entry"):
        book.charge(5, 0, EVENT)
    monkeypatch.undo()
    assert len(path.read_bytes()) == len(whole) + 10
    assert len(Ledger.resume(path).entries) == 7 and path.read_bytes() == whole


def test_every_entry_and_every_repair_is_forced_to_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[int] = []
    force = os.fsync
    monkeypatch.setattr("os.fsync", lambda fd: (forced.append(os.fstat(fd).st_size), force(fd)))
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"torn")
    book = Ledger.resume(path)
    assert forced == [whole]
    book.charge(5, 0, EVENT)
    assert forced == [whole, path.stat().st_size]
    ledger.repair(path)
    assert len(forced) == 2


def test_a_ledger_that_cannot_be_repaired_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(path.read_bytes() + b"torn")

    def fails(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(RunError, match=r"cannot repair the ledger \(Input/output error\)"):
        ledger.repair(path)


@pytest.mark.parametrize("line", [b"[]\n", b"3\n", b'{"entry":7,"kind":"charge"}\n', b"{\n"])
def test_lines_of_another_form_are_refused(path: Path, line: bytes) -> None:
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(LedgerError, match="line 8 is not a ledger entry"):
        ledger.read(path)


@pytest.mark.parametrize(("number", "after"), [(6, None), (8, None), (7, ledger.GENESIS)])
def test_a_line_that_does_not_follow_is_refused(path: Path, number: int, after: str | None) -> None:
    after = after or ledger.read(path)[-1].hash
    extra = json.dumps({"entry": number, "kind": "charge", "after": after})
    path.write_bytes(path.read_bytes() + extra.encode() + b"\n")
    with pytest.raises(LedgerError, match="line 8 does not follow"):
        ledger.read(path)


def test_only_charges_are_spent(path: Path) -> None:
    entries = ledger.read(path)
    assert events.leaves(ledger.spent(entries[:3])) == {EVENT: 2}
    assert events.leaves(ledger.spent([entries[0], entries[-1]])) == {}
    book = Ledger.resume(path)
    others = [book.append(kind, {}) for kind in ("abandoned", "charged", "")]
    assert events.leaves(ledger.spent([*entries, *others])) == {EVENT: 5}


def test_a_last_line_is_torn_wherever_it_was_cut(path: Path) -> None:
    """Of a ledger of two lines, cut after every byte: what is left is the first line or both."""
    lines = path.read_bytes().splitlines(keepends=True)[:2]
    whole = b"".join(lines)
    for end in range(len(lines[0]), len(whole) + 1):
        path.write_bytes(whole[:end])
        ledger.repair(path)
        assert path.read_bytes() == (whole if end == len(whole) else lines[0])
        assert len(ledger.read(path)) == (2 if end == len(whole) else 1)
