"""What a person sees while a model trains."""

import io

import pytest
from rich.console import Console

from tacit.progress import Moment, ProgressBar, facts_of
from tacit.report import values


def moment(epsilon: float | None, budget: float | None) -> Moment:
    return Moment(5, 10, 0.5, 1.0, epsilon, budget, None, 100.0, 3.0)


@pytest.mark.parametrize(
    ("epsilon", "budget", "shown"),
    [
        (1.2301, 3.0, "ε ≤ 1.24 of 3"),
        (3.0, 3.0, "ε ≤ 3.00 of 3"),
        (2.990001, 3.0, "ε ≤ 3.00 of 3"),
        (0.0061, 0.01, "ε ≤ 0.00610 of 0.01"),
        (0.0000001, 0.05, "ε ≤ 1.00e-7 of 0.05"),
        (2.001, None, "ε ≤ 2.01"),
        (None, None, "not private"),
    ],
)
def test_what_is_spent_is_shown_as_everywhere_else_and_rounded_up(
    epsilon: float | None, budget: float | None, shown: str
) -> None:
    assert facts_of(moment(epsilon, budget))["epsilon"] == shown


def test_accuracy_is_rounded_down_as_in_tables_and_reports() -> None:
    facts = facts_of(Moment(5, 10, 0.5, 1.0, 1.0, 3.0, 0.98769, 100.0, 3.0))
    assert facts["accuracy"] == f"accuracy {values.percent(0.98769)}" == "accuracy 98.76%"


def test_without_a_terminal_each_tenth_is_a_line_that_says_what_is_done() -> None:
    screen = io.StringIO()
    with ProgressBar(Console(file=screen, width=120)) as bar:
        for done in range(1, 41):
            bar.show(Moment.bare(done, 40, 60.0, "features"))
        bar.show(moment(1.0, 3.0))
    lines = screen.getvalue().splitlines()
    assert len([line for line in lines if line.startswith("features")]) == 10
    assert lines[0] == "features  10%"
    assert lines[-1].startswith("training  epoch 0.5/1  ε ≤ 1.00 of 3")
