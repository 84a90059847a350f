"""The log of noised sums is on disk before anything computed from them leaves the process."""

import pkgutil
from pathlib import Path
from typing import Any

import pytest
from small_runs import prepared, small_model, small_recipe

import tacit
from tacit.data.batches import TensorRecords
from tacit.journal import Journal
from tacit.losses import cross_entropy
from tacit.noise.sums import SumLog


class Unsynced:
    """Whether entries of the log were not yet on disk, whenever `look` is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: dict[str, list[bool]] = {}
        self._log: SumLog | None = None
        begin = SumLog.begin

        def remember(log: SumLog, step: int) -> None:
            self._log = log
            begin(log, step)

        monkeypatch.setattr(SumLog, "begin", remember)
        for where in ("tacit.rundir.RunDir.save_checkpoint", "tacit.rundir.RunDir.save_weights"):
            self._look_before(monkeypatch, where)
        self._look_before(monkeypatch, "tacit.journal.evaluate")
        self._look_before(monkeypatch, "tacit.journal.Journal.after_step")

    def look(self, name: str) -> None:
        if self._log is not None:
            self.seen.setdefault(name, []).append(self._log._unsynced)

    def _look_before(self, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
        original = pkgutil.resolve_name(where)

        def looking(*given: Any, **more: Any) -> Any:
            self.look(where.rpartition(".")[2])
            return original(*given, **more)

        monkeypatch.setattr(where, looking)


def test_the_log_is_on_disk_before_anything_leaves_the_process(
    tmp_path: Path,
    records: TensorRecords,
    without_figures: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tacit.journal._CHECKPOINT_SECONDS", 0.005)
    unsynced = Unsynced(monkeypatch)
    recipe = small_recipe(evaluate_every=0.25)
    tacit.fit(small_model(), records, test=records, recipe=recipe, out=tmp_path / "run")
    assert any(unsynced.seen.pop("after_step")), "no step waits for the disk"
    assert sorted(unsynced.seen) == ["evaluate", "save_checkpoint", "save_weights"]
    assert not any(any(found) for found in unsynced.seen.values())


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_log_is_on_disk_before_an_interrupted_model_is_returned(
    tmp_path: Path,
    records: TensorRecords,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    unsynced = Unsynced(monkeypatch)
    follow = Journal.after_step

    def interrupt(journal: Journal) -> None:
        follow(journal)
        if len(unsynced.seen["after_step"]) == 4:
            raise error

    monkeypatch.setattr(Journal, "after_step", interrupt)
    with pytest.raises(error):
        tacit.fit(small_model(), records, recipe=small_recipe(), out=tmp_path / "run")
    unsynced.look("returned")
    assert unsynced.seen["after_step"][-1] is True
    assert unsynced.seen["returned"] == [False]


def test_every_step_of_a_loop_of_ones_own_is_on_disk(
    tmp_path: Path, records: TensorRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsynced = Unsynced(monkeypatch)
    steps = prepared(tmp_path / "run", records, small_recipe())
    steps.advance(cross_entropy)
    unsynced.look("advanced")
    next(iter(steps))
    steps.step(cross_entropy)
    unsynced.look("stepped")
    assert unsynced.seen == {"advanced": [False], "stepped": [False]}
