"""How long several trainings will take, and what is said meanwhile."""

import io

import pytest
from rich.console import Console

from tacit.board import Clock, ProgressBoard
from tacit.progress import Moment


class Time:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_one_that_waits_is_taken_to_last_as_long_as_its_kind() -> None:
    now = Time()
    clock = Clock({"a1": "a", "a2": "a", "b1": "b"}, jobs=1, now=now)
    assert clock.seconds_left() is None
    clock.started("a1")
    now.seconds = 10.0
    clock.show("a1", 20.0)
    assert clock.seconds_left() == pytest.approx(20 + 30 + 30)
    now.seconds = 40.0
    clock.ended("a1")
    clock.started("b1")
    clock.show("b1", 100.0)
    assert clock.seconds_left() == pytest.approx(100 + 40)
    now.seconds = 140.0
    clock.ended("b1")
    clock.started("a2")
    now.seconds = 180.0
    clock.ended("a2")
    assert clock.seconds_left() == 0.0


def test_several_at_once_share_the_work_but_the_longest_decides() -> None:
    clock = Clock({"a": "x", "b": "x"}, jobs=2, now=lambda: 0.0)
    clock.started("a")
    clock.started("b")
    clock.show("a", 10.0)
    clock.show("b", 90.0)
    assert clock.seconds_left() == 90.0


def moment(step: int) -> Moment:
    return Moment(
        step=step,
        steps=10,
        epoch=1.0,
        epochs=2.0,
        epsilon=0.5,
        budget=1.0,
        accuracy=0.9,
        records_per_second=100.0,
        seconds_left=10.0 - step,
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_the_board_counts_runs_and_says_what_failed(terminal: bool) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=140, highlight=False)
    with ProgressBoard(console) as board:
        board.expect({"one": "a", "two": "a"}, finished=1, jobs=1)
        for name, failure in (("one", ""), ("two", "no [disk]")):
            board.started(name)
            board.show(name, moment(5))
            board.ended(name, failure)
    said = text.getvalue()
    assert "1 of 3 runs are finished already" in said
    assert "3 of 3 runs" in said if terminal else "2 of 3 runs" in said
    assert "two failed: no [disk]" in said
