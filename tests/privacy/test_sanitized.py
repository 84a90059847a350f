"""Costs of noised activations: published vectors, a second method, refusals."""

import json
import math
from dataclasses import replace

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as theirs
from typer.testing import CliRunner

from tacit.cli import app
from tacit.errors import ArgumentError, NoProofError
from tacit.privacy import accountants, claims, events, gaussian, rdp, visible
from tacit.privacy.accountants import Accountant
from tacit.privacy.gaussian_pair import GaussianPair
from tacit.privacy.pld import compose
from tacit.privacy.relations import Relation
from tacit.privacy.sanitized import SanitizedSchedule, Sanitizer, noise_for
from tacit.privacy.visible import OrNothing

DELTA = 1e-5
FEATURES = Relation.REPLACE_FEATURES
CIFAR = SanitizedSchedule("paper", 50_000, 250, 20_000, 1.0, Sanitizer(50, 1.0))


@pytest.mark.parametrize(
    ("rate", "steps", "expected"),
    [
        (250 / 50_000, 30 * 200, 2.34),
        (250 / 50_000, 51 * 200, 3.09),
        (250 / 50_000, 82 * 200, 4.00),
        (250 / 50_000, 100 * 200, 4.46),
        (20 / 50_000, 50 * 2500, 0.85),
        (20 / 50_000, 57 * 2500, 0.8865),
        (20 / 60_000, 100 * 3000, 1.00),
        (20 / 50_000, 100 * 2500, 1.096),
    ],
)
def test_claims_of_the_paper_are_reproduced(rate: float, steps: int, expected: float) -> None:
    digits = 5e-5 if expected == 0.8865 else 5e-4 if expected == 1.096 else 5e-3
    found = claims.sanitization(rate, 1.0, steps, DELTA)
    assert found.epsilon == pytest.approx(expected, abs=digits)
    assert "as the paper computes it" in found.source


def test_vectors_of_the_variants() -> None:
    claim = CIFAR.claimed(DELTA)
    assert claim is not None and claim.epsilon == pytest.approx(4.4618, abs=1e-4)
    assert math.isinf(CIFAR.proven(DELTA))
    assert CIFAR.head_only(DELTA) == pytest.approx(100.7266, abs=1e-3)
    once = replace(CIFAR, guarantee="one-time")
    assert once.proven(DELTA) == pytest.approx(4.37718, abs=1e-5)
    for moves_twice in ("symmetric", "ball"):
        twice = replace(once, sanitizer=Sanitizer(50, 1.0, moves_twice))
        assert twice.proven(DELTA) == pytest.approx(9.99726, abs=1e-5)
    assert noise_for(once, 1.0, DELTA).noise == pytest.approx(3.7306, abs=1e-4)
    every_epoch = events.repeated(Sanitizer(50, 1.0).release(), 100)
    assert accountants.epsilon(every_epoch, DELTA, FEATURES) == pytest.approx(91.8173, abs=1e-4)


def test_joint_vector() -> None:
    step = events.composed(
        [
            events.poisson(0.01, events.gaussian(2.0)),
            Sanitizer(50, 8.0).release(0.01),
        ]
    )
    run = events.repeated(step, 1000)
    assert accountants.epsilon(run, DELTA, Relation.ZERO_OUT) == pytest.approx(1.8783, abs=2e-4)
    replaced = accountants.epsilon(run, DELTA, FEATURES)
    fused = events.repeated(events.poisson(0.01, events.gaussian((1 / 64 + 1 / 4) ** -0.5)), 1000)
    wrong = accountants.epsilon(fused, DELTA, FEATURES)
    assert replaced == pytest.approx(2.1627, abs=2e-4)
    assert wrong < replaced - 0.2


def test_bernoulli_masks_cost_more_than_exact_ones() -> None:
    order = rdp.ORDERS.index(8.0)
    bernoulli = Sanitizer(50, 1.0, dropout=0.5, mask="bernoulli")
    (leaf, count), *rest = events.leaves(bernoulli.release()).items()
    assert not rest and count == 50 and leaf == events.visible(0.5, events.bounded_gaussian(5.0))
    value = 50 * rdp.or_nothing(0.5, np.array(rdp.ORDERS) / (2 * 25), rdp.ORDERS)[order]
    assert value == pytest.approx(5.06593, abs=1e-5)
    exact = Sanitizer(50, 1.0, dropout=0.5)
    assert rdp.poisson_gaussian(1.0, 1.0, [8.0])[0] == 4.0
    costs = [accountants.epsilon(s.release(), DELTA, FEATURES) for s in (bernoulli, exact)]
    assert costs[0] > costs[1] == pytest.approx(4.37718, abs=1e-5)
    assert exact.kept == 25 and exact.deviation(2.0) == pytest.approx(2 * 5.0)


@pytest.mark.parametrize(("rate", "sigma", "rounds"), [(0.3, 2.0, 7), (0.005, 1.0, 2000)])
def test_exact_sum_fourier_grid_and_dp_accounting_agree(
    rate: float, sigma: float, rounds: int
) -> None:
    event = events.repeated(events.visible(rate, events.bounded_gaussian(sigma)), rounds)
    exact = accountants.epsilon(event, DELTA, FEATURES)
    grid = compose([(OrNothing(rate, GaussianPair(sigma, 1.0, 0.0)), rounds)]).epsilon(DELTA)
    assert exact <= grid == pytest.approx(exact, rel=1e-3)
    assert accountants.epsilon(event, DELTA, FEATURES, Accountant.RDP) >= exact


def test_delta_is_the_mean_over_the_coins_by_dp_accounting() -> None:
    rate, sigma, rounds, epsilon = 0.3, 2.0, 7, 2.0
    once = theirs.from_gaussian_mechanism(sigma, value_discretization_interval=1e-4)
    expected = sum(
        math.comb(rounds, k)
        * rate**k
        * (1 - rate) ** (rounds - k)
        * once.self_compose(k).get_delta_for_epsilon(epsilon)
        for k in range(1, rounds + 1)
    )
    found = visible.delta_of(rounds, rate, 1 / sigma, 0.0, epsilon)
    assert found == pytest.approx(expected, rel=1e-3)


def test_a_public_coin_hides_nobody() -> None:
    rate, sigma, rounds = 0.005, 1.0, 2000
    hidden = events.repeated(events.poisson(rate, events.gaussian(2 * sigma)), rounds)
    seen = events.repeated(events.visible(rate, events.bounded_gaussian(sigma)), rounds)
    assert accountants.epsilon(seen, DELTA, FEATURES) > 5 * accountants.epsilon(
        hidden, DELTA, FEATURES
    )


def test_a_coin_that_always_falls_is_a_gaussian_release() -> None:
    event = events.repeated(events.visible(1.0, events.bounded_gaussian(3.0)), 4)
    assert accountants.epsilon(event, DELTA, FEATURES) == gaussian.epsilon_of(2 / 3, DELTA)


@pytest.mark.parametrize("relation", [Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE])
def test_visible_records_are_not_hidden_from_other_relations(relation: Relation) -> None:
    event = Sanitizer(4, 1.0).release()
    assert not accountants.covers(event, relation)
    with pytest.raises(NoProofError, match="replace-features"):
        accountants.epsilon(event, DELTA, relation)


def test_composing_n_times_is_n_single_composes() -> None:
    each = events.composed(
        [events.visible(0.2, events.bounded_gaussian(2.0)), events.poisson(0.1, events.gaussian(2))]
    )
    together = accountants.epsilon(events.repeated(each, 5), DELTA, FEATURES)
    apart = accountants.epsilon(events.composed([each] * 5), DELTA, FEATURES)
    assert together == pytest.approx(apart, rel=1e-9)
    assert together > accountants.epsilon(each, DELTA, FEATURES)


@pytest.mark.parametrize(
    "event",
    [
        events.visible(0.25, events.bounded_gaussian(2.0)),
        events.repeated(events.visible(1.0, events.gaussian(2.0)), 3),
    ],
)
def test_events_travel_through_json(event: dpa.DpEvent) -> None:
    assert events.from_json(json.loads(json.dumps(events.to_json(event)))) == event


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ArgumentError):
        events.visible(0.0, events.bounded_gaussian(1.0))
    with pytest.raises(ArgumentError):
        Sanitizer(0, 1.0)
    with pytest.raises(ArgumentError):
        Sanitizer(5, 1.0, dropout=1.0)
    with pytest.raises(NoProofError):
        Sanitizer(5, 1.0, dropout=0.5, mask="bernoulli").release(0.5)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--guarantee", "paper"], {"claimed": 4.46, "head_only": 100.7, "proven": None}),
        (
            ["--guarantee", "paper", "--dropout", "0.5", "--mask", "bernoulli"],
            {"claimed": 4.46, "head_only": None, "proven": None},
        ),
        (["--guarantee", "one-time"], {"proven": 4.377}),
        (["--guarantee", "one-time", "--range", "symmetric"], {"proven": 9.997}),
        (["--guarantee", "class-sums"], {"proven": 4.377}),
    ],
)
def test_plan_says_what_each_variant_proves(
    arguments: list[str], expected: dict[str, float | None]
) -> None:
    setting = "--records 50000 --batch-size 250 --epochs 100 --noise 1 --delta 1e-5 --json"
    result = CliRunner().invoke(app, ["plan", "sanitization", *arguments, *setting.split()])
    answer = json.loads(result.stdout)
    for key, value in expected.items():
        found = answer[key]
        found = found["replace-features"] if isinstance(found, dict) else found
        assert found == (value if value is None else pytest.approx(value, abs=5e-2))
        if value is not None and key == "proven":
            assert found == pytest.approx(value, abs=5e-4)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--noise", "0"], "noise is 0.0"),
        (["--noise", "-1"], "noise is -1.0"),
        (["--noise", "1", "--activation-noise", "-5"], "activation_noise is -5.0"),
        (["--epsilon", "nan"], "epsilon is nan; it must be"),
        (["--epsilon", "-1"], "epsilon is -1.0; it must be"),
        (["--guarantee", "class-sums", "--noise", "1", "--range", "symmetric"], "range is 'symm"),
        (["--guarantee", "class-sums", "--noise", "1", "--dropout", "0.5"], "dropout is 0.5"),
        (
            ["--guarantee", "joint", "--epsilon", "1", "--activation-noise", "1"],
            "activation_noise is 1.0: the noised vectors alone cost",
        ),
    ],
)
def test_plan_refuses_impossible_values_by_their_names(arguments: list[str], named: str) -> None:
    result = CliRunner().invoke(app, ["plan", "sanitization", "--records", "1000", *arguments])
    assert isinstance(result.exception, ArgumentError)
    assert str(result.exception).startswith(named)


def test_plan_of_class_sums_is_of_the_one_step_that_is_taken() -> None:
    line = "plan sanitization --guarantee class-sums --records 1000 --noise 2 --json"
    once = json.loads(CliRunner().invoke(app, line.split()).stdout)
    assert (once["range"], once["steps"], once["epochs"]) == ("ball", 1, 1.0)
    assert once["batch_size"] == 1000 and len(once["by_epochs"]) == 1
    longer = CliRunner().invoke(app, [*line.split(), "--epochs", "200"]).stdout
    noise = json.loads(longer)["dpsgd_at_the_same_epsilon"]["noise"]
    assert (
        noise["replace-features"] > once["dpsgd_at_the_same_epsilon"]["noise"]["replace-features"]
    )
