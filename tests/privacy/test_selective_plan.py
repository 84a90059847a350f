"""Plans of selective updates: vectors, what covers what, and the filter."""

from collections import Counter
from dataclasses import replace

import pytest
from dp_accounting import DpEvent

from tacit.errors import ArgumentError, NoProofError
from tacit.privacy import accountants, claims, elementary, events, rdp, selective
from tacit.privacy.accountants import Accountant
from tacit.privacy.filter import RdpFilter
from tacit.privacy.relations import Relation
from tacit.privacy.selective import LossTest, SelectiveSchedule

DELTA = 1e-5
ADD_REMOVE = Relation.ADD_OR_REMOVE_ONE
MNIST = SelectiveSchedule(60_000, 1024, 2500, 3.0, LossTest(256, 1.37))
SUMMED = replace(MNIST, test=LossTest(1024, 20.0, -1.0, "clipped-sum", 1.5))


def test_claimed_vector_and_its_growth() -> None:
    claim = MNIST.claimed(DELTA, 1000)
    assert claim is not None and claim.epsilon == pytest.approx(0.88947, abs=1e-5)
    assert "paper 001" in claim.source
    nothing = MNIST.claimed(DELTA, 0)
    assert nothing is not None and nothing.epsilon == 0.0


def test_charging_all_vectors() -> None:
    assert MNIST.proven(DELTA, accountant=Accountant.RDP) == pytest.approx(1.4519, abs=1e-4)
    assert MNIST.proven(DELTA) == pytest.approx(1.3292, abs=1e-4)


def test_decaying_noise_vector() -> None:
    orders = (12.0, 13.0, 14.0, 15.0)
    steps = [
        events.poisson(1024 / 60000, events.gaussian(max(3 * 0.995**k, 1.5))) for k in range(500)
    ]
    by_order = [
        rdp.epsilon_at(order, elementary.divergence(events.composed(steps), order), DELTA)
        for order in orders
    ]
    assert min(by_order) == pytest.approx(1.17543, abs=1e-5)


def test_a_claim_of_decaying_noise_is_a_sum_not_a_product() -> None:
    quiet, loud = MNIST.update_divergences(), replace(MNIST, noise=1.5).update_divergences()
    both = claims.selective(500 * quiet + 500 * loud, DELTA).epsilon
    assert claims.selective(1000 * quiet, DELTA).epsilon < both
    assert both < claims.selective(1000 * loud, DELTA).epsilon


def test_the_best_coin_beats_others_and_charging_all() -> None:
    best = MNIST.cheapest(DELTA)
    assert best.coin is not None and 0.55 < best.coin < 0.65
    for coin in (0.5, 0.55, 0.7, 0.9):
        assert best.proven(DELTA) < replace(MNIST, coin=coin).proven(DELTA)
    assert best.proven(DELTA) < 1.03 < MNIST.proven(DELTA)


@pytest.mark.parametrize("beta", [-1000.0, -60.0, 60.0, 1000.0])
@pytest.mark.parametrize("start", [MNIST, SUMMED])
def test_thresholds_that_decide_everything_never_cost_more_than_charging_all(
    start: SelectiveSchedule, beta: float
) -> None:
    extreme = replace(start, steps=100, test=replace(start.test, beta=beta))
    assert 0 <= extreme.cheapest(DELTA).proven(DELTA) <= extreme.proven(DELTA) < 1


def test_comparing_noisy_losses_again_is_charged_in_full() -> None:
    compared = replace(MNIST, compares=True)
    assert compared.thinned(DELTA) is None
    assert compared.cheapest(DELTA).proven(DELTA) == MNIST.proven(DELTA)
    with pytest.raises(NoProofError, match="compared again"):
        replace(compared, coin=0.6)


def test_summed_differences_are_cheaper_to_test() -> None:
    best = SUMMED.cheapest(DELTA)
    assert best.coin is not None
    assert best.proven(DELTA) < 0.91
    assert SUMMED.acceptance.bounds == pytest.approx((0.00135, 0.5), abs=1e-5)


@pytest.mark.parametrize("epsilon", [0.5, 1.0])
def test_trials_that_a_budget_allows(epsilon: float) -> None:
    start = SelectiveSchedule(6000, 500, 1, 4.0, LossTest(100, 1.5))
    found = selective.trials_for(start, epsilon, DELTA, ADD_REMOVE)
    assert found.proven(DELTA) <= epsilon
    more = replace(found, steps=found.steps + 1, coin=None).cheapest(DELTA)
    assert more.proven(DELTA) > epsilon


def test_noise_that_a_budget_needs() -> None:
    start = SelectiveSchedule(6000, 500, 20, 1.0, LossTest(100, 1.5))
    found = selective.noise_for(start, 1.0, DELTA, ADD_REMOVE)
    assert 0.998 < found.proven(DELTA) <= 1.0
    with pytest.raises(ArgumentError, match="tests alone"):
        selective.noise_for(replace(start, test=LossTest(3000, 0.5)), 1.0, DELTA, ADD_REMOVE)


@pytest.mark.parametrize("compares", [False, True])
def test_the_filter_keeps_within_its_budget_whatever_the_noise_does(compares: bool) -> None:
    start = replace(MNIST, compares=compares)
    budget = RdpFilter.for_budget(start, 1.0, DELTA)
    assert accountants.epsilon(budget.event(), DELTA) <= 1.0
    spent: Counter[DpEvent] = Counter()
    noise, trials = start.noise, 0
    while trials < 3000 and budget.admits(
        spent, event := budget.trial(replace(start, noise=noise))
    ):
        spent[event] += 1
        trials += 1
        noise = max(1.5, 0.97 * noise)
    assert 10 < trials < budget.trials(start)
    total = accountants.epsilon(events.counted(spent), DELTA)
    assert 0.8 < total <= 1.0 + 1e-12


def test_the_filter_for_trials_admits_just_these() -> None:
    start = replace(MNIST, steps=50)
    budget = RdpFilter.for_trials(start, DELTA)
    event = budget.trial(start)
    assert budget.admits(Counter({event: 49}), event)
    assert not budget.admits(Counter({event: 50}), event)


def test_adaptive_noise_is_accounted_for_at_one_order_only() -> None:
    event = events.adaptive(MNIST.trial_event(), 8.0)
    whole = events.repeated(event, 2500)
    at_8 = rdp.epsilon_at(8.0, 2500 * elementary.divergence(event, 8.0), DELTA)
    assert accountants.epsilon(whole, DELTA) == pytest.approx(at_8)
    assert at_8 > MNIST.proven(DELTA, accountant=Accountant.RDP)
    assert accountants.applied(whole, DELTA, ADD_REMOVE, Accountant.PLD) is Accountant.RDP
    with pytest.raises(NoProofError, match="one order"):
        accountants.epsilon(events.composed([event, events.filtered(9.0, 0.1)]), DELTA)
    with pytest.raises(NoProofError, match="earlier results"):
        accountants.epsilon(whole, DELTA, Relation.REPLACE_ONE)


def test_the_profile_of_a_filter_agrees_with_its_epsilon_at_every_delta() -> None:
    event = events.filtered(12.0, 0.3)
    profile = accountants.profile(event, ADD_REMOVE)
    for delta in (1e-8, 1e-5, 1e-2):
        epsilon = accountants.epsilon(event, delta)
        assert profile.epsilon(delta) == epsilon
        assert profile.delta(epsilon) == pytest.approx(delta, rel=1e-6)
    assert profile.delta(0.0) <= 1.0


def test_divergence_for_inverts_the_conversion() -> None:
    for order in (1.5, 8.0, 64.0):
        limit = rdp.divergence_for(order, 3.0, DELTA)
        if limit > 0:
            assert 3.0 - 1e-9 < rdp.epsilon_at(order, limit, DELTA) <= 3.0
