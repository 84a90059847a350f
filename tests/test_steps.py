"""Pay, write, update, in that order, seen by a method that writes down what it is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dp_accounting import DpEvent
from torch import nn

from tacit.clipping.contract import Batch, LossFunction
from tacit.errors import ArgumentError, BudgetError, MixedRecordsError, ReplayError, RunError
from tacit.methods.base import Method, Promise
from tacit.noise.source import RandomSource
from tacit.noise.sums import SumLog
from tacit.privacy import events, ledger
from tacit.privacy.ledger import Ledger
from tacit.privacy.relations import Relation
from tacit.state import TrainingState
from tacit.steps import Steps

PROMISED = 5
ROWS = torch.arange(10.0).view(5, 2)


def no_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return torch.zeros(len(batch[0]))


class Recorded(Method):
    """Writes down what happens; each step costs another event."""

    def __init__(self, path: Path, seen: list[Any]) -> None:
        self.promise = Promise(
            "recorded", Relation.ADD_OR_REMOVE_ONE, PROMISED, ("weights",), "none", None, {}
        )
        self.path, self.seen = path, seen
        self.admitted = 0
        self.most = PROMISED
        self.ended = False
        self.fails = False
        self.changes = True
        self.price = 1.0
        self.discount = 0.0

    def charge(self, step: int) -> DpEvent:
        return events.gaussian(self.price + step)

    def owed(self, step: int, spent: Counter[DpEvent]) -> DpEvent:
        return events.gaussian(self.price + step + self.discount)

    def draw(self, step: int) -> Iterable[Batch]:
        return [(ROWS[:2] + step, ROWS[:2, 0]), (ROWS[2:] + step, ROWS[2:, 0])]

    def step(self, step: int, loss: LossFunction, batches: Iterable[Batch]) -> None:
        kinds = [entry.kind for entry in ledger.read(self.path)]
        self.seen.append((step, list(batches), kinds.count("charge"), torch.rand(1).item()))
        if self.fails:
            raise RuntimeError("lightning")

    def admits(self, spent: Counter[DpEvent], step: int) -> bool:
        self.admitted += 1
        return step < self.most

    @property
    def updated(self) -> bool:
        return self.changes

    @property
    def stopped(self) -> bool:
        return self.ended


class Guard:
    """Lets everything pass unless told otherwise."""

    def __init__(self) -> None:
        self.mixed = False
        self.batches: list[list[Batch]] = []
        self.unchanged: list[bool] = []

    def __call__(self, loss: LossFunction, step: int, draw: Any) -> None:
        self.batches.append(list(draw()))
        if self.mixed:
            raise MixedRecordsError("records mix")

    def check_batch(self, unchanged: bool) -> None:
        self.unchanged.append(unchanged)


class Made(SimpleNamespace):
    steps: Steps
    method: Recorded
    guard: Guard
    path: Path
    seen: list[Any]
    averaged: list[int]
    synced: list[int]


def made(path: Path, *charged: tuple[int, int, float], step: int = 0, generation: int = 0) -> Made:
    """Steps after these charges: (step, generation, noise)."""
    if not path.exists():
        Ledger.create(path, {}).close()
    book = Ledger.resume(path)
    for at, of, noise in charged:
        book.charge(at, of, events.gaussian(noise))
    seen: list[Any] = []
    averaged: list[int] = []
    method, guard = Recorded(path, seen), Guard()
    average: Any = SimpleNamespace(update=lambda model, at: averaged.append(at))
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    optimizer: Any = None
    state = TrainingState(model.eval(), optimizer, average, step)
    log = SumLog()
    synced: list[int] = []
    sync = log.sync
    log.sync = lambda: (synced.append(state.step), sync())[1]  # type: ignore[method-assign]
    source = RandomSource(RandomSource.from_seed(0).key, "seed 0", log)
    guarding: Any = guard
    steps = Steps(method, state, book, source, generation, guarding)
    return Made(
        steps=steps,
        method=method,
        guard=guard,
        path=path,
        seen=seen,
        averaged=averaged,
        synced=synced,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def charges(path: Path) -> list[tuple[int, int]]:
    found = [entry.body for entry in ledger.read(path) if entry.kind == "charge"]
    return [(body["step"], body["generation"]) for body in found]


def test_every_step_is_paid_on_disk_before_it_is_taken(path: Path) -> None:
    it = made(path, generation=7)
    for taken in range(PROMISED):
        assert it.steps.remaining == PROMISED - taken and it.steps.state.step == taken
        it.steps.advance(no_loss)
    assert [(step, paid) for step, _, paid, _ in it.seen] == [(t, t + 1) for t in range(PROMISED)]
    assert charges(path) == [(t, 7) for t in range(PROMISED)]
    assert it.steps.remaining == 0 and it.steps.whole and not it.steps.stopped
    expected = events.counted(events.gaussian(1.0 + t) for t in range(PROMISED))
    assert events.leaves(it.steps.spent()) == events.leaves(expected)
    it.method.most = 2 * PROMISED
    with pytest.raises(BudgetError, match="promised steps are taken"):
        it.steps.advance(no_loss)
    assert len(it.seen) == PROMISED == len(charges(path))


def test_a_step_sees_the_records_that_the_method_drew_and_trains(path: Path) -> None:
    it = made(path)
    it.steps.advance(no_loss)
    assert it.steps.state.model.training
    for found in (it.seen[0][1], it.guard.batches[0]):
        assert torch.equal(torch.cat([x for x, _ in found]), ROWS)


def test_the_log_is_synced_after_each_step_unless_the_caller_does_that(path: Path) -> None:
    it = made(path)
    it.steps.advance(no_loss)
    assert it.synced == [1]
    it.steps.advance(no_loss, durable=False)
    assert it.synced == [1]
    with it.steps.as_released():
        assert it.synced == [1, 2]
    next(iter(it.steps))
    it.steps.step(no_loss)
    assert it.synced == [1, 2, 3]
    it.steps.close()
    assert it.synced == [1, 2, 3, 3]
    with pytest.raises(ValueError, match="closed"):
        it.steps.advance(no_loss)


def test_the_average_follows_only_updates(path: Path) -> None:
    it = made(path)
    it.steps.advance(no_loss)
    it.method.changes = False
    it.steps.advance(no_loss)
    it.method.changes = True
    it.steps.advance(no_loss)
    assert it.averaged == [0, 2]
    it.steps.state.average = None
    it.steps.advance(no_loss)
    assert it.steps.state.step == 4


def test_random_numbers_are_those_of_the_step_and_disturb_no_others(path: Path) -> None:
    first, again = made(path), made(path.with_name("again"))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for _ in range(3):
        first.steps.advance(no_loss)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    for _ in range(3):
        again.steps.advance(no_loss)
    draws = [drawn for *_, drawn in first.seen]
    assert draws == [drawn for *_, drawn in again.seen] and len(set(draws)) == 3


def test_charged_steps_of_this_key_are_repeated_without_another_charge(path: Path) -> None:
    it = made(path, (0, 0, 1.0), (1, 0, 2.0), (2, 0, 3.0), step=1)
    assert it.steps.remaining == 4
    for left in (3, 2, 1, 0):
        it.steps.advance(no_loss)
        assert it.steps.remaining == left
    assert charges(path) == [(t, 0) for t in range(PROMISED)]


def test_charges_of_a_lost_key_are_spent_for_nothing(path: Path) -> None:
    it = made(path, (0, 0, 1.0), (1, 0, 2.0), (1, 1, 2.0), step=1, generation=1)
    assert it.steps.remaining == 3
    it.steps.advance(no_loss)
    it.steps.advance(no_loss)
    assert charges(path)[3:] == [(2, 1)]
    assert it.steps.remaining == 1


def test_steps_before_the_state_are_not_paid_twice_over(path: Path) -> None:
    """Charges for steps that are in the state already leave nothing to repeat."""
    it = made(path, *((t, 0, 1.0 + t) for t in range(3)), step=3)
    assert it.steps.remaining == 2


@pytest.mark.parametrize("step", range(PROMISED + 2))
def test_no_step_lies_beyond_the_last_one_whatever_was_charged(path: Path, step: int) -> None:
    it = made(path, step=step)
    assert it.steps.remaining == max(0, PROMISED - step)


@pytest.mark.parametrize("discount", [0.0, 0.5])
def test_a_step_paid_for_as_charged_or_as_owed_is_repeated(path: Path, discount: float) -> None:
    it = made(path, (0, 0, 1.0 + discount))
    it.method.discount = 0.5
    it.steps.advance(no_loss)
    assert len(it.seen) == 1 and charges(path) == [(0, 0)]
    it.steps.advance(no_loss)
    last = ledger.read(path)[-1].body["event"]
    assert events.from_json(last) == events.gaussian(2.5)


def test_a_step_paid_for_as_another_release_is_not_repeated(path: Path) -> None:
    it = made(path, (0, 0, 1.3))
    with pytest.raises(ReplayError, match="step 0 was charged"):
        it.steps.advance(no_loss)
    assert it.seen == [] and not it.steps.whole


def test_a_run_that_spent_everything_and_has_nothing_is_refused(path: Path) -> None:
    it = made(path, *((t, 0, 1.0 + t) for t in range(PROMISED)), generation=1)
    with pytest.raises(BudgetError, match="before anything was saved"):
        _ = it.steps.remaining
    kept = made(path, step=1, generation=1)
    assert kept.steps.remaining == 0
    assert made(path.with_name("new")).steps.remaining == PROMISED


def test_the_method_decides_once_for_each_step_whether_it_goes_on(path: Path) -> None:
    it = made(path)
    it.method.most = 2
    for expected in (PROMISED, PROMISED - 1):
        assert it.steps.remaining == it.steps.remaining == expected
        it.steps.advance(no_loss)
    assert it.steps.remaining == it.steps.remaining == 0
    assert it.method.admitted == 3
    with pytest.raises(BudgetError):
        it.steps.advance(no_loss)


def test_a_step_that_was_paid_for_needs_no_leave(path: Path) -> None:
    it = made(path, (0, 0, 1.0))
    it.method.most = 0
    assert it.steps.remaining == PROMISED
    it.steps.advance(no_loss)
    assert it.steps.remaining == 0 and it.method.admitted == 1


def test_a_method_that_has_ended_takes_no_further_step(path: Path) -> None:
    it = made(path)
    it.steps.advance(no_loss)
    it.method.ended = True
    assert it.steps.stopped and it.steps.remaining == 0
    it.steps.state.step = PROMISED
    assert not it.steps.stopped


def test_a_step_that_broke_off_must_be_resumed(path: Path) -> None:
    it = made(path)
    it.method.fails = True
    with pytest.raises(RuntimeError, match="lightning"):
        it.steps.advance(no_loss)
    assert not it.steps.whole and it.steps.state.step == 0
    with pytest.raises(RunError, match="interrupted half way"):
        it.steps.advance(no_loss)
    assert len(it.seen) == 1 and charges(path) == [(0, 0)]


def test_mixed_records_are_noted_in_the_ledger_once_something_was_released(path: Path) -> None:
    it = made(path)
    it.guard.mixed = True
    with pytest.raises(MixedRecordsError):
        it.steps.advance(no_loss)
    assert [entry.kind for entry in ledger.read(path)] == ["promise"] and it.steps.whole
    it.guard.mixed = False
    it.steps.advance(no_loss)
    it.guard.mixed = True
    with pytest.raises(MixedRecordsError):
        it.steps.advance(no_loss)
    last = ledger.read(path)[-1]
    assert (last.kind, last.body) == ("mixed", {"step": 1})
    assert not it.steps.whole and len(it.seen) == 1


def test_loops_of_ones_own_use_every_batch_once(path: Path) -> None:
    it = made(path)
    with pytest.raises(ArgumentError, match="without a batch"):
        it.steps.step(no_loss)
    for batch in it.steps:
        assert torch.equal(batch[0], ROWS + it.steps.state.step)
        it.steps.step(no_loss, batch)
        with pytest.raises(ArgumentError, match="without a batch"):
            it.steps.step(no_loss, batch)
    assert len(it.seen) == PROMISED and it.guard.unchanged == [True] * PROMISED
    assert [[len(x) for x, _ in drawn] for _, drawn, *_ in it.seen] == [[2, 3]] * PROMISED


def test_a_batch_that_was_not_used_ends_the_loop(path: Path) -> None:
    it = made(path)
    loop = iter(it.steps)
    next(loop)
    with pytest.raises(ArgumentError, match="was not used"):
        next(loop)


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("row", [0, 3])
def test_a_changed_batch_is_told_to_the_guard_and_is_what_is_used(
    path: Path, part: int, row: int
) -> None:
    it = made(path)
    batch = next(iter(it.steps))
    changed = tuple(each.clone() for each in batch)
    changed[part][row] += 1
    it.steps.step(no_loss, changed)
    assert it.guard.unchanged == [False]
    for found in (it.seen[0][1], it.guard.batches[0]):
        for place, whole in enumerate(changed):
            assert torch.equal(torch.cat([piece[place] for piece in found]), whole)


def test_a_batch_of_fewer_parts_is_a_changed_one(path: Path) -> None:
    it = made(path)
    batch = next(iter(it.steps))
    it.steps.step(no_loss, batch[:1])
    assert it.guard.unchanged == [False]


@pytest.mark.parametrize("rows", [4, 6])
def test_records_must_not_be_left_out_or_added(path: Path, rows: int) -> None:
    it = made(path)
    next(iter(it.steps))
    with pytest.raises(ArgumentError, match="added or left out"):
        it.steps.step(no_loss, (torch.zeros(rows, 2), torch.zeros(rows)))


def test_an_empty_draw_is_an_empty_batch_and_a_step(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = made(path)
    monkeypatch.setattr(it.method, "draw", lambda step: iter(()))
    for batch in it.steps:
        assert batch == ()
        it.steps.step(no_loss, batch if it.steps.state.step else None)
    assert len(charges(path)) == PROMISED and it.seen[0][1] == []
    assert it.guard.unchanged == [True] * (PROMISED - 1)


def test_many_micro_batches_are_compared_one_by_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = made(path)
    pieces = [(torch.full((1, 2), float(i)), torch.zeros(1)) for i in range(300)]
    monkeypatch.setattr(it.method, "draw", lambda step: iter(pieces))
    batch = next(iter(it.steps))
    it.steps.step(no_loss, batch)
    assert it.guard.unchanged == [True] and len(it.seen[0][1]) == 300


def test_micro_batches_of_unlike_parts_are_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = made(path)
    pieces = [(ROWS, ROWS[:, 0]), (ROWS,)]
    monkeypatch.setattr(it.method, "draw", lambda step: iter(pieces))
    with pytest.raises(ValueError, match="shorter"):
        next(iter(it.steps))


def test_only_generators_that_a_model_can_draw_from_are_seeded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeding every kind of device takes as long as a step."""
    it, seeded = made(path), []
    monkeypatch.setattr("torch.manual_seed", seeded.append)
    it.steps.advance(no_loss)
    assert seeded == []
    it.steps.state.model.register_parameter("far", nn.Parameter(torch.zeros(1, device="meta")))
    monkeypatch.setattr(it.steps.fixed, "kept", nullcontext)
    it.steps.advance(no_loss)
    assert len(seeded) == 1


def test_fixed_state_is_watched(path: Path) -> None:
    it = made(path)
    assert it.steps.fixed is not None
    it.steps.state.model[0].register_buffer("b", torch.zeros(1))  # type: ignore[index,union-attr,operator]
    with pytest.raises(Exception, match="b"):
        it.steps.advance(no_loss)
    assert not it.steps.whole
