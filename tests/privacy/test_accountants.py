"""Published vectors, a second method, and refusals."""

import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from tacit.errors import ArgumentError, NoProofError
from tacit.privacy import accountants, events, gaussian, rdp
from tacit.privacy.accountants import Accountant
from tacit.privacy.relations import Relation

DELTA = 1e-5
ADD_REMOVE, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE


def sampled(rate: float, sigma: float, count: int) -> dpa.DpEvent:
    return events.repeated(events.poisson(rate, events.gaussian(sigma)), count)


@pytest.mark.parametrize(("mu", "expected"), [(1.0, 4.37718), (2.0, 9.99726)])
def test_exact_gaussian_vectors(mu: float, expected: float) -> None:
    assert gaussian.epsilon_of(mu, DELTA) == pytest.approx(expected, abs=6e-6)


def test_gaussian_epsilon_is_an_upper_inverse_of_delta() -> None:
    for mu in (0.01, 0.3, 1.0, 5.0, 20.0):
        epsilon = gaussian.epsilon_of(mu, DELTA)
        assert gaussian.delta_of(mu, epsilon) <= DELTA
        if epsilon > 0:
            assert gaussian.delta_of(mu, epsilon * (1 - 1e-6)) > DELTA


@pytest.mark.parametrize(
    ("accountant", "relation", "expected", "tolerance"),
    [
        (Accountant.RDP, ADD_REMOVE, 1.7568, 1e-4),
        (Accountant.PLD, ADD_REMOVE, 1.5660, 2e-4),
        (Accountant.PLD, REPLACE, 2.5867, 3e-4),
    ],
)
def test_dpsgd_vectors(
    accountant: Accountant, relation: Relation, expected: float, tolerance: float
) -> None:
    found = accountants.epsilon(sampled(1 / 235, 1.0, 4700), DELTA, relation, accountant)
    assert found == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(
    ("rate", "steps", "expected"), [(0.005, 20000, 4.4618), (1 / 3000, 300000, 1.0008)]
)
def test_rdp_vectors_of_the_sanitization_paper(rate: float, steps: int, expected: float) -> None:
    found = accountants.epsilon(sampled(rate, 1.0, steps), DELTA, accountant=Accountant.RDP)
    assert found == pytest.approx(expected, abs=1e-4)


def test_replacing_doubles_the_sensitivity_of_a_gaussian() -> None:
    event = events.gaussian(2.0)
    for accountant in Accountant:
        add = accountants.epsilon(event, DELTA, ADD_REMOVE, accountant)
        replace = accountants.epsilon(event, DELTA, REPLACE, accountant)
        same = accountants.epsilon(events.gaussian(1.0), DELTA, ADD_REMOVE, accountant)
        assert replace == pytest.approx(same, rel=1e-6) and replace > 1.9 * add


@pytest.mark.parametrize("accountant", list(Accountant))
def test_replacing_features_moves_a_sum_as_far_as_replacing_a_record(
    accountant: Accountant,
) -> None:
    """The certificate of a change of features: an independent formula, at multiplier 2/2."""
    found = accountants.epsilon(events.gaussian(2.0), DELTA, Relation.REPLACE_FEATURES, accountant)
    exact = accountants.epsilon(events.gaussian(1.0), DELTA, ADD_REMOVE, accountant)
    assert found == pytest.approx(exact, rel=1e-6) and found > 4.377


def test_replacing_features_of_a_sampled_record_costs_what_dp_accounting_says() -> None:
    event = sampled(0.02, 1.0, 50)
    second = PLDAccountant(dpa.NeighboringRelation.REPLACE_ONE)
    second.compose(event)
    found = accountants.epsilon(event, DELTA, Relation.REPLACE_FEATURES)
    assert found == pytest.approx(second.get_epsilon(DELTA), rel=5e-3)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(
    "event", [events.gaussian(3.0), events.poisson(0.02, events.gaussian(0.8))]
)
def test_composing_n_times_is_n_single_composes(event: dpa.DpEvent, relation: Relation) -> None:
    together = accountants.epsilon(events.repeated(event, 7), DELTA, relation)
    apart = accountants.epsilon(events.composed([event] * 7), DELTA, relation)
    assert together == pytest.approx(apart, rel=1e-9)
    assert together > accountants.epsilon(event, DELTA, relation)


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta"),
    [
        (0.01, 1.0, 1000, 1e-5),
        (0.2, 4.0, 300, 1e-6),
        (0.004, 0.6, 500, 1e-5),
        (0.5, 2.0, 20, 1e-4),
        (1.0, 5.0, 30, 1e-5),
        (0.01, 1.0, 1, 1e-5),
        (0.02, 0.35, 40, 1e-5),
    ],
)
@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
def test_close_to_dp_accounting_and_never_below_it(
    rate: float, sigma: float, steps: int, delta: float, relation: Relation
) -> None:
    neighbours = {
        ADD_REMOVE: dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
        REPLACE: dpa.NeighboringRelation.REPLACE_ONE,
    }[relation]
    second = PLDAccountant(neighbours, value_discretization_interval=1e-5 if steps == 1 else 1e-4)
    second.compose(sampled(rate, sigma, steps))
    theirs = second.get_epsilon(delta)
    ours = accountants.epsilon(sampled(rate, sigma, steps), delta, relation)
    assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-3)
    assert ours >= theirs * (1 - 5e-5) - 1e-5


def test_unequal_steps_agree_with_dp_accounting() -> None:
    steps = [(0.01, 1.0 + 0.1 * i) for i in range(12)]
    event = events.composed([sampled(q, s, 20) for q, s in steps])
    second = PLDAccountant(value_discretization_interval=1e-4)
    second.compose(event)
    ours = accountants.epsilon(event, DELTA)
    assert ours == pytest.approx(second.get_epsilon(DELTA), rel=1e-3)


def test_many_noise_levels_lie_between_the_extremes() -> None:
    sigmas = np.linspace(2.0, 0.8, 300)
    event = events.composed([sampled(0.01, float(s), 1) for s in sigmas])
    found = accountants.epsilon(event, DELTA)

    def in_blocks_of_six(most: bool) -> float:
        ends = [float(sigmas[i] if most else sigmas[i + 5]) for i in range(0, 300, 6)]
        return accountants.epsilon(events.composed([sampled(0.01, s, 6) for s in ends]), DELTA)

    below, above = in_blocks_of_six(True), in_blocks_of_six(False)
    assert below < found < above < 1.1 * below


def test_pld_never_exceeds_rdp() -> None:
    for rate, sigma, steps in ((0.01, 1.0, 500), (0.1, 3.0, 100), (0.004, 0.7, 1000)):
        event = sampled(rate, sigma, steps)
        assert accountants.epsilon(event, DELTA) < accountants.epsilon(
            event, DELTA, accountant=Accountant.RDP
        )


def test_rdp_agrees_with_dp_accounting_where_that_is_exact() -> None:
    orders = [float(order) for order in range(2, 40)]
    for rate, sigma in ((0.01, 1.0), (0.2, 4.0), (0.5, 1.3)):
        second = RdpAccountant(orders)
        second.compose(events.poisson(rate, events.gaussian(sigma)))
        ours = rdp.poisson_gaussian(rate, sigma, orders)
        np.testing.assert_allclose(ours, second._rdp, rtol=1e-8)


def test_epsilon_falls_with_noise_and_grows_with_steps_and_rate() -> None:
    base = accountants.epsilon(sampled(0.01, 1.0, 100), DELTA)
    assert accountants.epsilon(sampled(0.01, 1.1, 100), DELTA) < base
    assert accountants.epsilon(sampled(0.01, 1.0, 110), DELTA) > base
    assert accountants.epsilon(sampled(0.011, 1.0, 100), DELTA) > base
    assert accountants.epsilon(sampled(0.01, 1.0, 100), DELTA / 10) > base


def test_nothing_costs_nothing_and_no_noise_costs_everything() -> None:
    for accountant in Accountant:
        assert accountants.epsilon(dpa.NoOpDpEvent(), DELTA, accountant=accountant) == 0.0
        free = events.composed([dpa.NonPrivateDpEvent(), events.gaussian(1.0)])
        assert math.isinf(accountants.epsilon(free, DELTA, accountant=accountant))


@pytest.mark.parametrize("sigma", [0.02, 0.038, 0.045, 0.06])
def test_tiny_noise_is_never_under_estimated(sigma: float) -> None:
    """At rate 1/2 and one step, δ(ε) is at least half the plain Gaussian's at ε + ln 2."""
    for relation in (ADD_REMOVE, REPLACE):
        found = accountants.epsilon(sampled(0.5, sigma, 1), DELTA, relation)
        if math.isfinite(found):
            assert 0.5 * gaussian.delta_of(1 / sigma, found + math.log(2)) <= DELTA


def test_many_steps_at_a_small_delta_stay_finite() -> None:
    assert accountants.epsilon(sampled(0.001, 2.0, 1_000_000), 1e-9) < 20


@pytest.mark.parametrize(
    "event",
    [
        dpa.LaplaceDpEvent(1.0),
        dpa.SampledWithoutReplacementDpEvent(100, 10, dpa.GaussianDpEvent(1.0)),
        dpa.PoissonSampledDpEvent(0.1, dpa.LaplaceDpEvent(1.0)),
    ],
)
def test_events_without_a_proof_are_refused(event: dpa.DpEvent) -> None:
    for accountant in Accountant:
        with pytest.raises(NoProofError):
            accountants.epsilon(event, DELTA, accountant=accountant)


def test_pairs_without_a_proof_are_refused() -> None:
    event = sampled(0.1, 1.0, 1)
    with pytest.raises(NoProofError, match="pld"):
        accountants.epsilon(event, DELTA, REPLACE, Accountant.RDP)
    with pytest.raises(NoProofError, match="pld"):
        accountants.epsilon(event, DELTA, ADD_REMOVE, Accountant.GAUSSIAN)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_meaningless_delta_is_refused(delta: float) -> None:
    with pytest.raises(ArgumentError, match="delta"):
        accountants.epsilon(events.gaussian(1.0), delta)


def test_records_that_are_never_sampled_cost_nothing() -> None:
    event = events.repeated(events.poisson(0.0, events.gaussian(1.0)), 5)
    assert accountants.epsilon(event, 1e-5) == 0.0


@pytest.mark.parametrize("sigma", [1e-6, 1e-3, 0.03])
def test_noise_too_small_for_a_finite_loss_takes_neither_time_nor_memory(sigma: float) -> None:
    """Once the addition of a record was put on 68 million points although its removal is enough."""
    event = sampled(0.1, sigma, 20)
    assert math.isinf(accountants.epsilon(event, DELTA, REPLACE))
    rdp = accountants.epsilon(event, DELTA, ADD_REMOVE, Accountant.RDP)
    assert accountants.epsilon(event, DELTA, ADD_REMOVE) == rdp
    assert accountants.profile(event, ADD_REMOVE).delta(1.0) == 1.0
