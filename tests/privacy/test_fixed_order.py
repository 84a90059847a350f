"""DP-FTRL's plans against the published vectors, and what each step is charged."""

import math
from dataclasses import replace
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent

from tacit.errors import ArgumentError, NoProofError
from tacit.privacy import accountants, amplified, events, fixed_order
from tacit.privacy.amplified import GroupedSchedule
from tacit.privacy.fixed_order import Correlation, FixedOrderSchedule
from tacit.privacy.plan import SampledSchedule
from tacit.privacy.relations import Relation

PAPER = FixedOrderSchedule(60_000, 500, 1200, 20.0)


@pytest.mark.parametrize(
    ("noise", "claimed"), [(25, 2.65), (20, 3.41), (12.5, 5.84), (8, 9.92), (4, 23.80)]
)
def test_table_three_of_the_paper_and_a_proof_below_it(noise: float, claimed: float) -> None:
    schedule = replace(PAPER, noise=noise)
    claim = schedule.claimed(1e-5)
    assert claim is not None and round(claim.epsilon, 2) == claimed
    assert schedule.proven(1e-5) < claim.epsilon


def test_published_vectors() -> None:
    claim = PAPER.claimed(1e-5)
    assert claim is not None and claim.epsilon == pytest.approx(3.4079, abs=1e-4)
    assert PAPER.proven(1e-5) == pytest.approx(3.1468, abs=1e-4)
    assert PAPER.proven(1e-5, Relation.REPLACE_ONE) == pytest.approx(7.0514, abs=1e-3)


@pytest.mark.parametrize(
    ("correlation", "product"),
    [
        (Correlation("banded", bands=1), 77.5),
        (Correlation(reduced=False), 33.3),
        (Correlation(), 25.4),
        (Correlation(restart_every=1, completion=True), 18.6),
        (Correlation("banded", bands=120), 12.3007),
        (Correlation("banded"), 12.3007),
    ],
)
def test_noise_in_the_sums_of_each_mechanism(correlation: Correlation, product: float) -> None:
    schedule = replace(PAPER, correlation=correlation)
    found = math.sqrt(schedule.sensitivity_squared) * schedule.prefix_noise()
    assert found == pytest.approx(product, abs=0.06 if product > 13 else 1e-4)


@pytest.mark.parametrize(
    "correlation",
    [
        Correlation(),
        Correlation(restart_every=2, completion=True),
        Correlation(order="reshuffled"),
        Correlation("banded", bands=7),
    ],
)
def test_charges_of_the_steps_add_up_to_the_whole_and_never_below(
    correlation: Correlation,
) -> None:
    schedule = FixedOrderSchedule(95, 10, 57, 3.0, correlation)
    for steps in (1, 20, 57):
        spent = events.counted(schedule.charge(t) for t in range(steps))
        paid = accountants.epsilon(spent, 1e-5, Relation.ZERO_OUT)
        part = float(schedule.growth()[steps - 1])
        exact = accountants.epsilon(GaussianDpEvent(3.0 / math.sqrt(part)), 1e-5)
        assert exact <= paid < exact * (1 + 1e-6)
    assert paid == pytest.approx(schedule.proven(1e-5), rel=1e-6)


def test_a_fixed_order_has_no_proof_for_adding_or_removing() -> None:
    with pytest.raises(NoProofError, match="moves all others"):
        PAPER.proven(1e-5, Relation.ADD_OR_REMOVE_ONE)


@pytest.mark.parametrize(
    "kind", [Correlation(), Correlation("banded"), Correlation(restart_every=1, completion=True)]
)
@pytest.mark.parametrize("relation", [Relation.ZERO_OUT, Relation.REPLACE_ONE])
def test_the_noise_for_a_budget_is_the_least(kind: Correlation, relation: Relation) -> None:
    found = fixed_order.noise_for(replace(PAPER, correlation=kind), 2.65, 1e-5, relation)
    assert 2.649 < found.proven(1e-5, relation) <= 2.65
    assert replace(found, noise=found.noise * 0.999).proven(1e-5, relation) > 2.65


def test_the_most_epochs_for_a_budget() -> None:
    found = fixed_order.epochs_for(PAPER, 2.0, 1e-5, Relation.ZERO_OUT)
    assert found.proven(1e-5) <= 2.0
    assert replace(found, steps=found.steps + 120).proven(1e-5) > 2.0
    with pytest.raises(ArgumentError, match="single epoch"):
        fixed_order.epochs_for(PAPER, 0.1, 1e-5, Relation.ZERO_OUT)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"mechanism": "banded", "order": "reshuffled"}, NoProofError, "fixed order only"),
        ({"mechanism": "banded", "restart_every": 1}, ArgumentError, "'tree' only"),
        ({"bands": 3}, ArgumentError, "'banded' only"),
        ({"completion": True}, ArgumentError, "give restart_every"),
        ({"restart_every": -1}, ArgumentError, "restart_every is -1"),
        ({"mechanism": "banded", "bands": -1}, ArgumentError, "bands is -1"),
    ],
)
def test_combinations_without_a_proof_or_a_meaning(
    settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Correlation(**settings)


def test_a_last_short_batch_is_a_batch_of_its_own() -> None:
    assert FixedOrderSchedule(95, 10, 20, 1.0).batches == 10
    assert FixedOrderSchedule(95, 10, 20, 1.0).sensitivity_squared == 12


def test_one_group_is_dpsgd_and_all_groups_are_the_banded_factor() -> None:
    one = GroupedSchedule(6000, 100, 120, 2.0, 1)
    same = SampledSchedule(6000, 100, 120, 2.0)
    assert one.proven(1e-5) == same.proven(1e-5, Relation.ZERO_OUT)
    every = GroupedSchedule(6000, 100, 120, 2.0, 60)
    banded = FixedOrderSchedule(
        6000, 100, 120, 2.0 * every.column_norm, Correlation("banded", bands=60)
    )
    assert every.probability == 1.0
    assert every.proven(1e-5) == pytest.approx(banded.proven(1e-5), rel=1e-6)
    assert every.noise * every.prefix_noise() == pytest.approx(banded.noise * banded.prefix_noise())


def test_a_round_is_charged_once_and_in_advance() -> None:
    schedule = GroupedSchedule(6000, 100, 50, 2.0, 8)
    charges = [schedule.charge(t) for t in range(50)]
    assert [t for t, event in enumerate(charges) if event == schedule.round_event()] == list(
        range(0, 50, 8)
    )
    paid = accountants.epsilon(events.counted(charges), 1e-5, Relation.ZERO_OUT)
    assert paid == schedule.proven(1e-5) and schedule.rounds == 7


def test_the_best_number_of_groups_leaves_least_noise_within_the_budget() -> None:
    like = GroupedSchedule(60_000, 500, 1200, 1.0, 1)
    best = amplified.best_bands(like, 2.65, 1e-5, Relation.ZERO_OUT)
    assert best.proven(1e-5) <= 2.65 and 1 < best.bands < 120
    for bands in (1, 120):
        other = amplified.noise_for(replace(like, bands=bands), 2.65, 1e-5, Relation.ZERO_OUT)
        assert best.noise * best.prefix_noise() < other.noise * other.prefix_noise()


def test_groups_too_small_for_the_batch_are_refused() -> None:
    with pytest.raises(ArgumentError, match="bands is 13"):
        GroupedSchedule(6000, 500, 100, 1.0, 13)
