"""What a person sees while a model trains."""

import io

import pytest
from rich.console import Console

from tacit.progress import Moment, ProgressBar, facts_of


def moment(epsilon: float | None, budget: float | None) -> Moment:
    return Moment(5, 10, 0.5, 1.0, epsilon, budget, None, 100.0, 3.0)


@pytest.mark.parametrize(
    ("epsilon", "budget", "shown"),
    [
        (1.2301, 3.0, "ε ≤ 1.24 of 3"),
        (3.0, 3.0, "ε ≤ 3.00 of 3"),
        (0.00061, 0.001, "ε ≤ 0.00061 of 0.001"),
        (0.0000001, 0.05, "ε ≤ 0.0001 of 0.05"),
        (2.001, None, "ε ≤ 2.01"),
        (None, None, "not private"),
    ],
)
def test_what_is_spent_is_rounded_up_with_digits_that_the_budget_needs(
    epsilon: float | None, budget: float | None, shown: str
) -> None:
    assert facts_of(moment(epsilon, budget))["epsilon"] == shown


def test_without_a_terminal_each_tenth_is_a_line_that_says_what_is_done() -> None:
    screen = io.StringIO()
    with ProgressBar(Console(file=screen, width=120)) as bar:
        for done in range(1, 41):
            bar.show(Moment.bare(done, 40, 60.0, "features"))
        bar.show(moment(1.0, 3.0))
    lines = screen.getvalue().splitlines()
    assert len([line for line in lines if line.startswith("features")]) == 10
    assert lines[0] == "features  10%  1:00 left"
    assert lines[-1].startswith("training  epoch 0.5/1  ε ≤ 1.00 of 3")
