"""From scores to verdicts, and what a promise allows."""

import math

import numpy as np
import pytest
from dp_accounting import NonPrivateDpEvent
from scipy.special import ndtr, ndtri

from tacit.audit.promised import Promised
from tacit.audit.protocol import Played, claimed_epsilon
from tacit.audit.scores import Scores
from tacit.audit.verdict import Status, conclude
from tacit.errors import ArgumentError
from tacit.privacy import events
from tacit.privacy.relations import Relation

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE


def run(
    mu: float, claimed: float | None = None, coins: int = 8000, promised: float = 1.0
) -> Played:
    """A Gaussian mechanism that really has μ = `mu`, charged as if it were `promised`."""
    generator = np.random.default_rng(2)
    heads = generator.random(coins) < 0.5
    scores = Scores(generator.normal(size=coins) + mu * heads, heads)
    return Played(scores, events.gaussian(1 / promised), ADD, True, claimed)


def test_a_mechanism_that_keeps_its_promise_is_consistent() -> None:
    finding = conclude("test", [run(1.0)], 1e-5)
    assert finding.status is Status.CONSISTENT
    assert finding.proven == pytest.approx(4.37718, abs=1e-5)
    assert 3.0 < finding.epsilon < finding.proven
    assert finding.verdict.startswith("Consistent with what is proven")
    assert finding.highest_auc == pytest.approx(float(ndtr(1 / math.sqrt(2))), abs=0.01)
    assert finding.auc.low <= finding.highest_auc


def test_more_than_claimed_refutes_the_claim() -> None:
    finding = conclude("test", [run(1.0, claimed=2.0)], 1e-5)
    assert finding.status is Status.CLAIM_REFUTED
    assert "The claim of ε = 2.00 is refuted" in finding.verdict


def test_more_than_proven_means_that_something_is_broken() -> None:
    finding = conclude("test", [run(2.0, claimed=2.0)], 1e-5)
    assert finding.status is Status.BROKEN
    assert finding.verdict.startswith("Proof or code is broken")
    assert "The claim of ε = 2.00 is refuted" in finding.verdict


def exactly(mu: float, coins: int) -> Scores:
    """Scores whose ranks are those of normal numbers, so that chance plays no part."""
    normal = ndtri((np.arange(coins // 2) + 0.5) / (coins // 2))
    heads = np.arange(coins) // 2 % 2 == 1
    values = np.empty(coins)
    values[heads], values[~heads] = normal + mu, normal
    return Scores(values, heads)


def test_an_auc_above_the_allowed_one_is_explained_by_few_coins_or_left_open() -> None:
    event = events.gaussian(1.0)
    few, many = (
        conclude("test", [Played(exactly(1.1, coins), event, ADD, independent=False)], 1e-5)
        for coins in (200, 8000)
    )
    assert few.auc.low < few.highest_auc < few.auc.estimate
    assert few.status is Status.CONSISTENT
    assert "lies above the 0.76" in few.verdict
    assert "within the uncertainty of 200 coins (" in few.verdict
    assert many.auc.low > many.highest_auc and many.epsilon < many.proven
    assert many.status is Status.UNSETTLED
    assert many.verdict.startswith("Not settled") and "Play more coins" in many.verdict
    below = conclude("test", [Played(exactly(0.8, 200), event, ADD, True)], 1e-5)
    assert "AUC" not in below.verdict


@pytest.mark.parametrize(
    ("coins", "shown"), [(100, set()), (200, {"0.01"}), (1996, {"0.01"}), (2000, {"0.01", "0.001"})]
)
def test_a_rate_of_false_positives_is_shown_where_the_coins_can_tell_it(
    coins: int, shown: set[str]
) -> None:
    finding = conclude("test", [Played(exactly(1.0, coins), events.gaussian(1.0), ADD, True)], 1e-5)
    assert set(finding.true_positives) == shown
    assert finding.coins_needed == {"0.001": 2000, "0.01": 200}


def test_nothing_promised_is_said() -> None:
    unprotected = Played(run(2.0).scores, NonPrivateDpEvent(), ADD, True)
    finding = conclude("test", [unprotected], 1e-5)
    assert finding.status is Status.CONSISTENT
    assert finding.verdict.startswith("Nothing was promised")
    assert finding.as_json()["proven"] is None
    assert finding.highest_auc == pytest.approx(1.0)


def test_audited_epsilon_is_rounded_down() -> None:
    finding = conclude("test", [run(1.0)], 1e-5)
    largest = max(bound.epsilon for bound in finding.bounds)
    assert largest - 1e-4 < finding.epsilon <= largest


def test_trying_more_attacks_costs_confidence() -> None:
    alone, many = (conclude("test", [run(1.0)], 1e-5, attacks=n) for n in (1, 6))
    assert many.epsilon < alone.epsilon


def test_dependent_scores_get_the_bound_that_allows_for_it_alone() -> None:
    played = run(1.0)
    dependent = Played(played.scores, played.event, REPLACE, independent=False)
    assert [bound.name for bound in conclude("test", [dependent], 1e-5).bounds] == ["one run"]


def test_runs_of_other_charges_are_not_mixed() -> None:
    with pytest.raises(ArgumentError, match="not charged the same"):
        conclude("test", [run(1.0), run(1.0, promised=0.5)], 1e-5)


def test_a_confidence_that_means_nothing_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"confidence is 1\.5"):
        conclude("test", [run(1.0)], 1e-5, confidence=1.5)


def test_no_attack_on_a_gaussian_mechanism_beats_its_curve() -> None:
    rates = np.array([0.001, 0.01, 0.5])
    found = Promised(events.gaussian(1.0), ADD).allowed(rates)
    np.testing.assert_allclose(found, ndtr(ndtri(rates) + 1), rtol=1e-6)


def test_noise_is_scaled_inside_every_event() -> None:
    event = events.counted(
        [events.poisson(0.25, events.gaussian(2.0)), events.fixed_order(events.gaussian(1.0))]
    )
    expected = events.counted(
        [events.poisson(0.25, events.gaussian(1.0)), events.fixed_order(events.gaussian(0.5))]
    )
    assert Promised(event, Relation.ZERO_OUT).with_noise(0.5).event == expected


def test_a_relation_without_a_proof_of_its_own_is_covered_in_two_steps() -> None:
    """An RDP filter is proven for records that are present or absent only."""
    once = events.adaptive(events.poisson(0.1, events.gaussian(2.0)), 8.0)
    epsilon = Promised(once, REPLACE).epsilon(1e-5)
    inner = Promised(once, ADD).epsilon(1e-5)
    assert 2 * inner < epsilon < 4 * inner
    assert Promised(once, Relation.REPLACE_FEATURES).epsilon(1e-5) == epsilon
    assert Promised(once, REPLACE).allowed(np.array([0.1]))[0] == 1.0
    ordered = events.fixed_order(events.gaussian(1.0))
    assert math.isinf(Promised(ordered, ADD).epsilon(1e-5))


@pytest.mark.parametrize(
    ("said", "relation", "expected"),
    [
        ("add-or-remove-one", ADD, 1.0),
        ("add-or-remove-one", Relation.ZERO_OUT, 1.0),
        ("add-or-remove-one", REPLACE, None),
        ("replace-one", Relation.REPLACE_FEATURES, 1.0),
        ("replace-features", REPLACE, None),
    ],
)
def test_only_claims_about_the_same_change_can_be_refuted(
    said: str, relation: Relation, expected: float | None
) -> None:
    promise = {"claimed": {"epsilon": 1.0, "source": "a paper", "relation": said}}
    assert claimed_epsilon(promise, relation) == expected
    assert claimed_epsilon({"claimed": None}, relation) is None
