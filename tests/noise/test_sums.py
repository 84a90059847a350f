"""The log of noised sums finds every step that is not repeated exactly."""

import errno
from pathlib import Path

import pytest
import torch

from tacit.errors import ReplayError, RunError
from tacit.noise.source import RandomSource
from tacit.noise.sums import SumLog

A, B, C = ("a" * 64, "b" * 64, "c" * 64)


def written(path: Path, *steps: tuple[str, ...]) -> None:
    log = SumLog(path)
    for step, names in enumerate(steps):
        log.begin(step)
        for name in names:
            log.enter(f"gradient noise {step}", name)
    log.close()


def entered(log: SumLog, step: int, *names: str) -> None:
    log.begin(step)
    for name in names:
        log.enter(f"gradient noise {step}", name)


def test_steps_that_repeat_their_sums_pass_and_new_steps_follow(tmp_path: Path) -> None:
    written(tmp_path / "sums", (A, B), (C,))
    before = (tmp_path / "sums").read_bytes()
    log = SumLog(tmp_path / "sums", replayed=True)
    entered(log, 0, A, B)
    entered(log, 1, C)
    assert (tmp_path / "sums").read_bytes() == before
    entered(log, 2, B)
    again = SumLog(tmp_path / "sums", replayed=True)
    with pytest.raises(ReplayError, match="step 2 was noised before"):
        entered(again, 2, A)


def test_a_step_that_was_cut_short_may_be_completed(tmp_path: Path) -> None:
    written(tmp_path / "sums", (A,), (B,))
    log = SumLog(tmp_path / "sums", replayed=True)
    entered(log, 1, B, C)
    again = SumLog(tmp_path / "sums", replayed=True)
    with pytest.raises(ReplayError):
        entered(again, 1, B, A)


@pytest.mark.parametrize("repeated", [(B,), (B, A), (A, C), (A, B, C)])
def test_other_sums_another_order_and_further_sums_are_refused(
    tmp_path: Path, repeated: tuple[str, ...]
) -> None:
    written(tmp_path / "sums", (A, B), (C,))
    with pytest.raises(ReplayError, match="step 0 was noised before"):
        entered(SumLog(tmp_path / "sums", replayed=True), 0, *repeated)


def test_the_same_sum_for_another_purpose_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "sums", (A,))
    log = SumLog(tmp_path / "sums", replayed=True)
    log.begin(0)
    with pytest.raises(ReplayError):
        log.enter("validation noise 0", A)


def test_a_step_is_not_taken_twice_in_one_process() -> None:
    log = SumLog()
    entered(log, 0, A)
    entered(log, 1, B)
    with pytest.raises(ReplayError):
        entered(log, 0, C)
    with pytest.raises(ReplayError):
        entered(log, 1, C)


@pytest.mark.parametrize(
    "tail", [b"1 ccc", b"1 " + b"c" * 64, bytes(100), bytes(50) + b"\n", b"\n"]
)
def test_a_tail_that_a_crash_left_incomplete_is_ignored(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "sums"
    written(path, (A,))
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    log = SumLog(path, replayed=True)
    assert path.read_bytes() == whole
    entered(log, 1, B)
    with pytest.raises(ReplayError):
        entered(SumLog(path, replayed=True), 1, A)


def test_damage_in_the_middle_and_a_missing_file_prevent_a_replay(tmp_path: Path) -> None:
    path = tmp_path / "sums"
    with pytest.raises(ReplayError, match="missing"):
        SumLog(path, replayed=True)
    written(path, (A,), (B,))
    data = path.read_bytes()
    path.write_bytes(b"\0" + data[1:])
    with pytest.raises(ReplayError, match="damaged"):
        SumLog(path, replayed=True)


@pytest.mark.parametrize("damage", [b"x\n", b"\n", b"0 0 noise\n", bytes(4) + b"\n", bytes(90)])
def test_an_entry_after_damage_of_any_length_prevents_a_replay(
    tmp_path: Path, damage: bytes
) -> None:
    path = tmp_path / "sums"
    written(path, (A,), (B,))
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + damage + second)
    with pytest.raises(ReplayError, match="damaged"):
        SumLog(path, replayed=True)
    assert path.read_bytes() == first + damage + second


def test_entries_are_written_at_once_and_synced_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SumLog(tmp_path / "sums")
    synced = []
    monkeypatch.setattr("os.fsync", synced.append)
    entered(log, 0, A)
    assert A.encode() in (tmp_path / "sums").read_bytes() and not synced
    log.sync()
    log.sync()
    assert len(synced) == 1


def test_only_what_was_entered_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    log = SumLog(tmp_path / "sums")
    monkeypatch.setattr("os.fsync", synced.append)
    log.sync()
    assert synced == []
    entered(log, 0, A)
    log.close()
    assert len(synced) == 1


def test_a_closed_log_takes_no_entry_and_may_be_closed_again(tmp_path: Path) -> None:
    for path in (tmp_path / "sums", None):
        log = SumLog(path)
        entered(log, 0, A)
        file = log._file
        log.close()
        log.close()
        assert file is None or file.closed
        entered(log, 1, B)
    assert (tmp_path / "sums").read_text() == f"0 {A} gradient noise 0\n"


def test_a_line_that_was_written_in_part_stops_the_run(tmp_path: Path) -> None:
    log = SumLog(tmp_path / "sums")
    whole = log._file
    assert whole is not None

    class Half:
        def write(self, line: bytes) -> int:
            return whole.write(line[:-1])

    log._file = Half()  # type: ignore[assignment]
    with pytest.raises(RunError, match="only part of the entry") as raised:
        entered(log, 0, A)
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.ENOSPC
    whole.close()
    entered(SumLog(tmp_path / "sums", replayed=True), 0, B)


def test_logs_of_many_steps_are_read_back_whole(tmp_path: Path) -> None:
    names = [f"{number:064x}" for number in range(12)]
    written(tmp_path / "sums", *((name, A) for name in names))
    again = SumLog(tmp_path / "sums", replayed=True)
    for step, name in enumerate(names):
        entered(again, step, name, A)
    entered(again, 12, B)
    last = SumLog(tmp_path / "sums", replayed=True)
    entered(last, 11, names[11], A)
    with pytest.raises(ReplayError, match="fewer sums"):
        entered(last, 11, names[11], A, B)


def test_purposes_of_any_length_are_logged(tmp_path: Path) -> None:
    log, purpose = SumLog(tmp_path / "sums"), "noise " * 100
    log.begin(0)
    log.enter(purpose, A)
    log.close()
    again = SumLog(tmp_path / "sums", replayed=True)
    again.begin(0)
    again.enter(purpose, A)
    assert (tmp_path / "sums").read_text() == f"0 {A} {purpose}\n"


def test_hundreds_of_sums_in_a_step_are_as_good_as_two(tmp_path: Path) -> None:
    names = [f"{number:064x}" for number in range(300)]
    written(tmp_path / "sums", tuple(names))
    again = SumLog(tmp_path / "sums", replayed=True)
    entered(again, 0, *names, A)
    assert (tmp_path / "sums").read_bytes().count(b"\n") == 301


def test_a_new_log_forgets_the_one_before(tmp_path: Path) -> None:
    written(tmp_path / "sums", (A,))
    assert (tmp_path / "sums").stat().st_mode & 0o777 == 0o600
    entered(SumLog(tmp_path / "sums"), 0, B)
    assert (tmp_path / "sums").read_text() == f"0 {B} gradient noise 0\n"


def test_a_log_that_cannot_be_written_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    log = SumLog(tmp_path / "sums")
    entered(log, 0, A)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match=r"No space left.*--resume"):
        log.sync()


def test_a_log_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    written(tmp_path / "sums", (A,))
    assert (tmp_path / "sums").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("content", "scale"), [(torch.ones(3), 2.0), (torch.zeros(3), 1.0), (torch.ones(4), 1.0)]
)
def test_noise_for_other_content_or_of_another_scale_is_refused(
    content: torch.Tensor, scale: float
) -> None:
    source = RandomSource.from_seed(3)
    source.log = SumLog()
    source.log.begin(0)
    first = source.address("noise 0", torch.ones(3), [1.0])
    source.log.begin(0)
    assert source.address("noise 0", torch.ones(3), [1.0]) == first
    source.log.begin(0)
    with pytest.raises(ReplayError):
        source.address("noise 0", content, [scale])


def test_a_source_that_follows_from_another_shares_its_log() -> None:
    source = RandomSource.from_seed(3)
    source.log = SumLog()
    assert source.apart("activations").log is source.log
