"""Thinning: the bound holds for whatever acceptance function is drawn, and follows the vectors."""

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr

from tacit.errors import ArgumentError, NoProofError
from tacit.privacy import accountants, bits, claims, elementary, events
from tacit.privacy.accountants import Accountant
from tacit.privacy.relations import Relation
from tacit.privacy.thinning import AcceptanceTest

DELTA = 1e-5
RATE, SIGMA = 1024 / 60000, 3.0
GRADIENT = events.poisson(RATE, events.gaussian(SIGMA))
MNIST = AcceptanceTest(256 / 60000, -2.5 / 2.74, -0.5 / 2.74, 1 / 1.37)
ADD_REMOVE = Relation.ADD_OR_REMOVE_ONE
Array = NDArray[np.float64]


def test_acceptance_bounds_vector() -> None:
    assert MNIST.bounds == pytest.approx((0.180777, 0.427602), abs=1e-6)


def test_one_trial_at_order_8_vector() -> None:
    found = elementary.divergence(events.thinned(GRADIENT, MNIST, 0.6), 8.0)
    assert found == pytest.approx(1.19574e-4, abs=6e-10)


def test_2500_trials_vector() -> None:
    event = events.repeated(events.thinned(GRADIENT, MNIST, 0.6), 2500)
    by_rdp = accountants.epsilon(event, DELTA, accountant=Accountant.RDP)
    assert by_rdp == pytest.approx(1.1254, abs=1e-4)
    by_pld = accountants.epsilon(event, DELTA)
    assert by_pld == pytest.approx(1.0293, abs=1e-4)
    assert by_pld < 1.095, "dp-accounting's default grid gives 1.095, an upper bound"


def outputs(sigma: float) -> tuple[Array, Array]:
    """The Gaussian of a gradient without and with the record, in bins: post-processed."""
    edges = np.concatenate(([-np.inf], np.linspace(-8 * sigma, 8 * sigma + 1, 161), [np.inf]))
    return between(edges / sigma), between((edges - 1) / sigma)


def between(z: Array) -> Array:
    """Normal probability of each bin, from the side where it keeps its digits."""
    return np.where(z[:-1] > 0, -np.diff(ndtr(-z)), np.diff(ndtr(z)))


def trial(law: Array, accept: Array) -> Array:
    """The law of a trial: an accepted bin, or nothing."""
    kept = law * accept
    return np.append(kept, 1 - kept.sum())


def renyi(p: Array, q: Array, order: float) -> float:
    return float(logsumexp(order * np.log(p) + (1 - order) * np.log(q)) / (order - 1))


@pytest.mark.parametrize("kind", ["clipped mean", "clipped sum"])
def test_no_acceptance_function_exceeds_the_bound(kind: str) -> None:
    """A few thousand tests: any function of the candidate, extreme ones first."""
    chance = np.random.default_rng(5)
    worst = 0.0
    for case in range(1500):
        sigma, q_t, q_v = chance.uniform(0.7, 4), chance.uniform(0.01, 0.9), chance.uniform(0, 0.9)
        noise, beta = chance.uniform(0.5, 4), chance.uniform(-3, 0.5)
        half = 0.5 / noise if kind == "clipped mean" else chance.uniform(0.5 / noise, 2)
        test = AcceptanceTest(q_v + 1e-3, (beta - 1) * half, (beta + 1) * half, 1 / noise)
        most = test.bounds[1]
        coin = most + (1 - most) * chance.uniform(0.02, 1)
        order = float(chance.choice([1.3, 2.0, 5.0, 8.0, 20.0]))
        z, one = outputs(sigma)
        ends = [test.low, test.high]
        s = chance.choice(ends, len(z)) if case % 2 else chance.uniform(test.low, test.high, len(z))
        move = chance.choice([-1.0, 1.0], len(z)) * test.shift
        with_record = ndtr(np.clip(s + move, test.low, test.high))
        accept = (1 - test.rate) * ndtr(s) + test.rate * with_record
        absent, present = trial(z, ndtr(s)), trial((1 - q_t) * z + q_t * one, accept)
        bound = elementary.divergence(
            events.thinned(events.poisson(q_t, events.gaussian(sigma)), test, coin), order
        )
        for found in (renyi(present, absent, order), renyi(absent, present, order)):
            assert found <= bound * (1 + 1e-9) + 1e-12
            worst = max(worst, found / bound)
    assert worst > 0.8, "the bound is far from what was tried: the test would notice little"


def test_the_papers_claim_is_refuted() -> None:
    """A pair whose accepted updates, 1,000 of them, lose more than the paper claims."""
    low, high = MNIST.bounds
    z, one = outputs(SIGMA)
    above = np.linspace(-8 * SIGMA, 8 * SIGMA + 1, len(z)) > -3
    without = np.where(above, low, high)
    with_record = (1 - MNIST.rate) * without + MNIST.rate * np.where(above, high, low)
    present, absent = ((1 - RATE) * z + RATE * one) * with_record, z * without
    loss = privacy_loss_distribution.from_two_probability_mass_functions(
        dict(enumerate(np.log(absent / absent.sum()))),
        dict(enumerate(np.log(present / present.sum()))),
        value_discretization_interval=2e-6,
        pessimistic_estimate=False,
    )
    lost = loss.self_compose(1000).get_epsilon_for_delta(DELTA)
    claim = claims.selective(1000 * claims.selective_update(RATE, SIGMA, MNIST.rate, 1.37), DELTA)
    assert claim.epsilon == pytest.approx(0.88947, abs=1e-5)
    assert lost > 1.03 > claim.epsilon


@pytest.mark.parametrize("corner", [0, 1])
def test_composition_lies_just_above_a_second_method(corner: int) -> None:
    """dp-accounting composes the trial of one constant acceptance function, in fine bins."""
    coin, count = 0.6, 400
    low, high = MNIST.bounds if corner else MNIST.bounds[::-1]
    y, x = low / coin, ((1 - MNIST.rate) * low + MNIST.rate * high) / coin
    z, one = outputs(SIGMA)
    mixed = (1 - RATE) * z + RATE * one
    present = np.concatenate(([1 - coin], coin * mixed * x, coin * mixed * (1 - x)))
    absent = np.concatenate(([1 - coin], coin * z * y, coin * z * (1 - y)))
    theirs = privacy_loss_distribution.from_two_probability_mass_functions(
        dict(enumerate(np.log(absent))),
        dict(enumerate(np.log(present))),
        value_discretization_interval=2e-6,
    )
    second = theirs.self_compose(count).get_epsilon_for_delta(DELTA)
    ours = accountants.epsilon(events.repeated(events.thinned(GRADIENT, MNIST, coin), count), DELTA)
    assert second - 2e-3 < ours < 1.06 * second


def test_the_bits_pair_dominates_every_pair_it_covers() -> None:
    chance = np.random.default_rng(2)
    test = AcceptanceTest(0.3, -1.0, 0.4, 0.5)
    for relation in (ADD_REMOVE, Relation.REPLACE_ONE, Relation.REPLACE_FEATURES):
        mass, other = bits.CoinPair(test.bits(0.8, relation)).atoms
        for _ in range(500):
            s = chance.uniform(-1, 0.4)
            near = np.clip(s + chance.uniform(-0.5, 0.5, 2), -1, 0.4)
            x = 0.7 * ndtr(s) + 0.3 * ndtr(near[0])
            y = ndtr(s) if relation is ADD_REMOVE else 0.7 * ndtr(s) + 0.3 * ndtr(near[1])
            for t in np.exp(chance.uniform(-0.5, 0.5, 8)):
                found = max(0, x / 0.8 - t * y / 0.8) + max(0, 1 - x / 0.8 - t * (1 - y / 0.8))
                assert found <= np.maximum(0, mass - t * other).sum() + 1e-12


def test_a_coin_of_one_and_no_information_cost_what_the_gradient_costs() -> None:
    deaf = AcceptanceTest(0.01, 0.0, 0.0, 1.0)
    whole = elementary.divergence(GRADIENT, 8.0)
    assert elementary.divergence(events.thinned(GRADIENT, deaf, 1.0), 8.0) == pytest.approx(whole)
    half = elementary.divergence(events.thinned(GRADIENT, deaf, 0.5 + 1e-9), 8.0)
    assert half == pytest.approx(whole / 2, rel=1e-3)


@pytest.mark.parametrize("coin", [0.2, 0.4276, 1.01])
def test_a_coin_that_acceptance_exceeds_is_refused(coin: float) -> None:
    with pytest.raises(ArgumentError, match="a_star"):
        events.thinned(GRADIENT, MNIST, coin)


def test_events_survive_the_ledger() -> None:
    for event in (
        events.thinned(GRADIENT, MNIST, 0.6),
        events.adaptive(events.composed([GRADIENT, events.gaussian(2.0)]), 8.0),
        events.filtered(8.0, 0.3),
    ):
        assert events.from_json(events.to_json(event)) == event
    with pytest.raises(NoProofError, match="not a test"):
        events.from_json({"thinned": 0.6, "test": {"poisson": 0.1}, "of": {"gaussian": 1.0}})
