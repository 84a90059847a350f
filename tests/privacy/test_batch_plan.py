"""What rounds of clipped mini-sets promise, for every way of drawing them."""

import json
import math
from typing import Any

import pytest
from scipy.special import ndtri
from typer.testing import CliRunner

from tacit.cli import app
from tacit.errors import ArgumentError, NoProofError
from tacit.privacy import accountants, batch_plan, events
from tacit.privacy.batch_plan import BatchSchedule
from tacit.privacy.relations import Relation

PAPER = BatchSchedule(54_000, 64, 50, 2.5 / math.sqrt(8))
SAMPLINGS: tuple[batch_plan.Sampling, ...] = ("subset", "partition", "once-per-epoch")


def test_vectors_of_the_paper() -> None:
    claim = PAPER.claimed(1e-5)
    assert claim is not None
    assert claim.epsilon == pytest.approx(2.08813, abs=6e-6)
    assert claim.mu == pytest.approx(0.52128, abs=6e-6)
    assert 2.07 < PAPER.proven(1e-5) <= 2.09
    once = BatchSchedule(54_000, 64, 50, 2.5 / math.sqrt(8), "once-per-epoch")
    assert once.proven(1e-5) == pytest.approx(65.3192, abs=1e-4)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("mini_sets", [1, 4, 20])
def test_charges_of_the_steps_add_up_to_the_plan(
    sampling: batch_plan.Sampling, mini_sets: int
) -> None:
    schedule = BatchSchedule(103, 20, 2.5, 1.0, sampling, mini_sets)
    charged = events.counted(schedule.charge(step) for step in range(schedule.steps))
    assert accountants.epsilon(charged, 1e-5, Relation.REPLACE_ONE) == schedule.proven(1e-5)


def test_a_partition_draws_whole_sets() -> None:
    schedule = BatchSchedule(103, 20, 1, 1.0, "partition", mini_sets=4)
    assert (schedule.set_size, schedule.sets, schedule.rounds_per_epoch) == (5, 21, 6)
    assert schedule.probability == 4 / 21
    assert events.to_json(schedule.round_event()) == {
        "fixed-order": {"subset": [4, 21], "of": {"bounded-gaussian": 1.0}}
    }


def test_mini_sets_do_not_change_the_cost_of_a_subset() -> None:
    """The paper's point: k mini-sets of s records cost what one batch of k·s records costs."""
    costs = {BatchSchedule(1000, 60, 3, 1.0, "subset", k).proven(1e-5) for k in (1, 6, 60)}
    assert len(costs) == 1


def test_adding_a_record_is_refused() -> None:
    for sampling in SAMPLINGS:
        with pytest.raises(NoProofError, match="replace-one"):
            BatchSchedule(100, 10, 1, 1.0, sampling).proven(1e-5, Relation.ADD_OR_REMOVE_ONE)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_solved_noise_and_epochs_stay_within_the_budget(sampling: batch_plan.Sampling) -> None:
    base = BatchSchedule(2000, 50, 4, 1.0, sampling)
    solved = batch_plan.noise_for(base, 2.0, 1e-5, Relation.REPLACE_ONE)
    assert 1.999 < solved.proven(1e-5) <= 2.0
    longer = batch_plan.epochs_for(solved, 4.0, 1e-5, Relation.REPLACE_ONE)
    assert longer.epochs > solved.epochs and longer.proven(1e-5) <= 4.0
    with pytest.raises(ArgumentError, match="single round"):
        batch_plan.epochs_for(BatchSchedule(100, 100, 1, 0.1), 1.0, 1e-5, Relation.REPLACE_ONE)


@pytest.mark.parametrize(
    ("values", "words"),
    [((100, 101, 1, 1.0), "batch_size"), ((100, 10, 0, 1.0), "epochs")],
)
def test_senseless_schedules_are_refused(values: tuple[int, int, float, float], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        BatchSchedule(*values)
    with pytest.raises(ArgumentError, match="divisor"):
        BatchSchedule(100, 10, 1, 1.0, mini_sets=3)


def planned(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["plan", "batch-clipping", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


ROW = ("--records", "54000", "--batch-size", "64", "--epochs", "50", "--delta", "1e-5")


def test_the_command_gives_claimed_and_proven() -> None:
    answer = planned(*ROW, "--noise", "2.5", "--layers", "8")
    assert answer["claimed"] == pytest.approx(2.088, abs=5e-4)
    assert answer["mu"] == pytest.approx(0.5213, abs=5e-5)
    proven = answer["proven"]
    assert isinstance(proven, dict) and list(proven) == ["replace-one"]
    assert 2.07 < proven["replace-one"] <= 2.09
    warnings = answer["warnings"]
    assert isinstance(warnings, list) and "below the proven" in warnings[0]


def test_the_command_answers_for_the_relation_that_is_asked_for() -> None:
    arguments = ["--records", "500", "--batch-size", "20", "--epochs", "1", "--noise", "1"]
    for relation in ("replace-one", "zero-out"):
        answer = planned(*arguments, "--relation", relation)
        assert answer["proven"] == {relation: planned(*arguments)["proven"]["replace-one"]}
    asked = ["plan", "batch-clipping", *arguments, "--relation", "add-or-remove-one"]
    refused = CliRunner().invoke(app, asked)
    assert isinstance(refused.exception, NoProofError) and "replace-one" in str(refused.exception)


def test_the_command_names_the_noise_that_training_takes() -> None:
    arguments = ["--records", "500", "--batch-size", "20", "--epochs", "1", "--noise", "3"]
    shown = CliRunner().invoke(app, ["plan", "batch-clipping", *arguments, "--layers", "4"])
    assert shown.exit_code == 0 and "noise 1.5 is that of the whole release" in shown.output


@pytest.mark.parametrize(
    ("sampling", "least", "most"), [("partition", 2.07, 2.09), ("once-per-epoch", 65.3, 65.33)]
)
def test_the_command_knows_the_samplings(sampling: str, least: float, most: float) -> None:
    proven = planned(*ROW, "--noise", "2.5", "--layers", "8", "--sampling", sampling)["proven"]
    assert isinstance(proven, dict) and least < proven["replace-one"] <= most


def test_the_command_solves_for_noise() -> None:
    answer = planned(
        "--records",
        "5000",
        "--batch-size",
        "50",
        "--epochs",
        "3",
        "--epsilon",
        "2",
        "--layers",
        "4",
    )
    assert answer["solved_for"] == "noise"
    assert answer["noise"] == pytest.approx(2 * float(str(answer["noise_of_the_whole"])))


def test_claims_beyond_all_numbers() -> None:
    """Noise of the paper's ResNet-18 has no claim; that of its convnet an absurd one."""
    assert BatchSchedule(45_000, 64, 50, 0.01875 / math.sqrt(62)).claimed(1e-5) is None
    absurd = BatchSchedule(45_000, 64, 50, 0.5 / 3).claimed(1e-5)
    assert absurd is not None and 1e6 < absurd.epsilon < math.inf
    exact = BatchSchedule(45_000, 64, 50, 0.26).claimed(1e-5)
    assert exact is not None and exact.mu is not None and 600 < exact.mu < 900
    assert exact.epsilon == pytest.approx(exact.mu**2 / 2 - exact.mu * ndtri(1e-5), rel=1e-3)


def test_the_command_forecasts_networks_with_batch_norm() -> None:
    answer = planned(
        *("--records", "500", "--batch-size", "20", "--epochs", "1", "--noise", "1"),
        *("--model", "convnet5-bn", "--shape", "1,8,8"),
    )
    forecast = answer["forecast"]
    assert isinstance(forecast, dict) and forecast["seconds"] > 0
