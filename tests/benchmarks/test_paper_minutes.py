"""Times of the papers' rows: carried on from first steps, and asked for once for each kind."""

import pytest
from paper_minutes import STEPS, WARM_UP, Enough, FirstSteps, estimates, kind_of

from tacit.config import Recipe
from tacit.papers.index import Row
from tacit.progress import Moment


class Clock:
    """Says what it is told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def after(*seconds: float, steps: int, enough: float) -> tuple[FirstSteps, bool]:
    """Steps that end at these times, of so many; and whether that was enough."""
    clock = Clock()
    watcher = FirstSteps(enough, clock)
    clock.now = 100.0
    with watcher:
        for step, when in enumerate(seconds, 1):
            clock.now = 100.0 + when
            try:
                watcher.show(Moment.bare(step, steps, 0.0))
            except Enough:
                return watcher, True
    return watcher, False


def test_steps_that_warm_up_do_not_count_for_those_to_come() -> None:
    slow = [60.0 * step for step in range(1, WARM_UP + 2)]
    quick = [slow[-1] + 6.0 * step for step in range(1, STEPS + 1)]
    watcher, enough = after(*slow, *quick, steps=1000, enough=0.0)
    left = 1000 - len(slow) - len(quick)
    assert enough and watcher.minutes == pytest.approx((quick[-1] + 6.0 * left) / 60)


def test_a_training_goes_on_until_it_has_been_watched_for_long_enough() -> None:
    times = [float(step) for step in range(1, 40)]
    watcher, enough = after(*times, steps=1000, enough=20.0)
    assert enough and watcher.minutes == pytest.approx(1000 / 60)
    assert not after(*times, steps=1000, enough=100.0)[1]


def test_a_training_that_ends_took_what_it_took() -> None:
    watcher, enough = after(30.0, steps=1, enough=0.0)
    assert not enough and watcher.minutes == pytest.approx(0.5)
    assert after(30.0, steps=2, enough=0.0)[0].minutes is None


def test_rows_of_one_kind_are_tried_once_and_take_time_by_their_epochs() -> None:
    asked: list[Recipe] = []

    def epoch(recipe: Recipe) -> float | None:
        asked.append(recipe)
        return None if recipe.data.name == "mnist" else 0.25

    rows = [
        Row(what="", recipe="digits", changes={"training.epochs": "4"}),
        Row(what="", recipe="digits", changes={"training.epochs": "10", "method.clip": "3"}),
        Row(what="", recipe="mnist"),
        Row(what="the first again", recipe="digits", changes={"training.epochs": "4"}),
    ]
    assert dict(estimates(rows, epoch)) == {
        "digits --set training.epochs=4": 1.0,
        "digits --set training.epochs=10 --set method.clip=3": 2.5,
        "mnist": None,
    }
    assert [recipe.data.name for recipe in asked] == ["digits", "mnist"]


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"training.epochs": "3", "privacy.epsilon": "8", "method.clip": "2"}, True),
        ({"model.name": "linear"}, False),
        ({"method.name": "dpftrl"}, False),
        ({"training.views": "2", "training.augment": '["flip"]'}, False),
    ],
)
def test_a_kind_is_what_decides_the_time_of_an_epoch(changes: dict[str, str], same: bool) -> None:
    usual = Row(what="", recipe="digits").wanted()
    changed = Row(what="", recipe="digits", changes=changes).wanted()
    assert (kind_of(changed) == kind_of(usual)) == same


def test_trials_cost_the_same_whatever_is_kept_of_them() -> None:
    kinds = {
        kind_of(Row(what="", recipe="digits", changes={"method.name": name}).wanted())
        for name in ("dpsur", "dpsgd-br")
    }
    assert len(kinds) == 1
