"""The chain of hashes, write-ahead, and every way to damage a ledger."""

import json
from pathlib import Path

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
