"""The solver: every unknown, never in the user's favour."""

import pytest

from tacit.errors import ArgumentError
from tacit.privacy.plan import Question, solve, steps_for
from tacit.privacy.relations import Relation

KNOWN = {"noise": 1.0, "epochs": 20.0, "batch_size": 256, "records": 60_000}
ADD_REMOVE = Relation.ADD_OR_REMOVE_ONE


def test_epsilon_of_the_published_setting() -> None:
    schedule = solve(Question(delta=1e-5, **KNOWN))
    assert schedule.steps == 4688
    assert schedule.proven(1e-5, ADD_REMOVE) == pytest.approx(1.566, abs=0.005)
    assert schedule.proven(1e-5, Relation.REPLACE_ONE) == pytest.approx(2.587, abs=0.005)


@pytest.mark.parametrize("target", [0.1, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("relation", [ADD_REMOVE, Relation.REPLACE_ONE])
def test_solved_noise_fits_and_is_not_wasteful(target: float, relation: Relation) -> None:
    known = {**KNOWN, "noise": None}
    question = Question(delta=1e-5, epsilon=target, relation=relation, **known)
    found = solve(question).proven(1e-5, relation)
    assert 0.9967 * target <= found <= target


@pytest.mark.parametrize("unknown", ["epochs", "batch_size", "records"])
def test_other_unknowns_fit_and_one_more_would_not(unknown: str) -> None:
    known = {**KNOWN, unknown: None}
    schedule = solve(Question(delta=1e-5, epsilon=2.0, **known))
    assert schedule.proven(1e-5, ADD_REMOVE) <= 2.0
    next_one = {
        "epochs": {"steps": schedule.steps + 1},
        "batch_size": {"batch_size": schedule.batch_size + 2},
        "records": {"records": schedule.records - 20},
    }[unknown]
    worse = {**KNOWN, **next_one}
    if "steps" in worse:
        worse.pop("epochs")
    assert solve(Question(delta=1e-5, **worse)).proven(1e-5, ADD_REMOVE) > 2.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"noise": -1.0},
        {"epochs": 0.0},
        {"batch_size": 70_000},
        {"records": 0},
        {"steps": 10, "epochs": 3.0},
        {"noise": None, "epochs": None},
        {"epsilon": 1.0},
    ],
)
def test_bad_questions_name_the_value(wrong: dict[str, float]) -> None:
    with pytest.raises(ArgumentError):
        solve(Question(delta=1e-5, **{**KNOWN, **wrong}))


def test_impossible_budgets_say_what_to_change() -> None:
    with pytest.raises(ArgumentError, match="more noise"):
        solve(Question(delta=1e-5, epsilon=0.01, noise=0.3, batch_size=30000, records=60000))


def test_steps_are_rounded_up() -> None:
    assert steps_for(1, 10, 3) == 4 and steps_for(1, 9, 3) == 3


def test_claimed_reproduces_the_tables_of_paper_002() -> None:
    for noise, published in ((1.0, 1.68), (0.75, 3.33), (0.5, 13.09)):
        known = {"noise": noise, "epochs": 20.0, "batch_size": 256, "records": 54_000}
        claim = solve(Question(delta=1e-5, **known)).claimed(1e-5)
        assert claim.epsilon == pytest.approx(published, abs=0.05)
        assert "002" in claim.source
