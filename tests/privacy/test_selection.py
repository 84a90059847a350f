"""The best of several runs: the bound against the truth, a second accountant, and refusals."""

import itertools
import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta
from numpy.typing import NDArray
from scipy.special import logsumexp

from tacit.errors import ArgumentError, NoProofError
from tacit.privacy import accountants, elementary, events, rdp, tradeoff
from tacit.privacy.accountants import Accountant
from tacit.privacy.relations import Relation
from tacit.privacy.selection import RunCount, best_of, candidates_of

DELTA = 1e-5
ADD_REMOVE, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
LAWS = [RunCount(mean, shape) for mean in (1.5, 12.0) for shape in (0.0, 1.0, 3.0, math.inf)]
ORDERS = np.array([1.2, 2.0, 4.0, 16.0, 64.0])
RUN = events.repeated(events.poisson(0.05, events.gaussian(1.5)), 100)

Array = NDArray[np.float64]


def generating(law: RunCount, at: Array) -> Array:
    """E[at^K], added up term by term."""
    chances = np.array(list(itertools.islice(law.chances(), 1000)))
    return np.array([np.sum(chances * x ** np.arange(len(chances))) for x in at])


def law_of_best(law: RunCount, one: Array) -> Array:
    """The law of the best run, where outcomes stand in the order of their score, none first."""
    up_to = np.concatenate([[0.0], np.minimum(np.cumsum(one), 1.0)])
    values = generating(law, up_to)
    return np.concatenate([values[:1], np.diff(values)])


def divergence(order: float, p: Array, q: Array) -> float:
    terms = [
        order * math.log(a) + (1 - order) * math.log(b) for a, b in zip(p, q, strict=True) if a > 0
    ]
    return float(logsumexp(terms)) / (order - 1)


def pairs() -> list[tuple[Array, Array]]:
    """Neighbouring laws of one run on a few outcomes: coins, steps and shifts, both ways round."""
    x = np.linspace(-2.5, 3.0, 15)
    normal = [np.exp(-((x - mean) ** 2) / 2) for mean in (0.0, 0.7)]
    found = [
        (np.array([0.5, 0.5]), np.array([0.7, 0.3])),
        (np.array([0.9, 0.09, 0.01]), np.array([0.9, 0.07, 0.03])),
        (np.array([0.999, 0.001]), np.array([0.998, 0.002])),
        (normal[0] / normal[0].sum(), normal[1] / normal[1].sum()),
    ]
    both = [*found, *((q, p) for p, q in found)]
    return [*both, *((p[::-1], q[::-1]) for p, q in both)]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_true_divergence_of_the_best_run_is_never_above_the_bound(law: RunCount) -> None:
    tightest = math.inf
    for p, q in pairs():
        one = np.array([max(divergence(a, p, q), divergence(a, q, p)) for a in ORDERS])

        def delta(epsilon: float, p: Array = p, q: Array = q) -> float:
            gaps = p - math.exp(epsilon) * q, q - math.exp(epsilon) * p
            return float(max(np.maximum(gap, 0).sum() for gap in gaps))

        bound = law.divergences(ORDERS, one, delta)
        chosen = law_of_best(law, p), law_of_best(law, q)
        true = [divergence(order, *chosen) for order in ORDERS]
        assert np.all(true <= bound * (1 + 1e-9) + 1e-9)
        tightest = min(tightest, float(np.min(bound - true)))
    assert tightest < 0.3  # somewhere it is nearly reached


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_number_of_runs_has_the_law_that_is_accounted(law: RunCount) -> None:
    chances = np.array(list(itertools.islice(law.chances(), 8000)))
    assert chances.sum() == pytest.approx(1.0, abs=1e-9)
    assert np.sum(chances * np.arange(len(chances))) == pytest.approx(law.mean, rel=1e-6)
    uniform = (np.arange(4000) + 0.5) / 4000
    drawn = np.array([law.drawn(u) for u in uniform])
    for runs in range(6):
        assert np.mean(drawn == runs) == pytest.approx(chances[runs], abs=5e-4)


def test_one_run_is_its_own_best() -> None:
    alone = accountants.epsilon(RUN, DELTA, accountant=Accountant.RDP)
    for shape in (0.0, 1.0, 2.5):
        one = RunCount(1.0, shape)
        assert [one.drawn(u) for u in (0.0, 0.3, 0.999999)] == [1, 1, 1]
        assert accountants.epsilon(best_of([RUN], one), DELTA) == pytest.approx(alone)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("run", [RUN, events.gaussian(2.0)], ids=["sampled", "gaussian"])
def test_never_above_dp_accounting_which_knows_less_of_a_run(
    run: dpa.DpEvent, law: RunCount
) -> None:
    """It bounds the others' influence by divergences alone, where ours takes δ at every ε."""
    event = best_of([run], law)
    second = RdpAccountant(rdp.ORDERS)
    second.compose(event)
    theirs = second.get_epsilon(DELTA)
    ours = accountants.epsilon(event, DELTA)
    alone = accountants.epsilon(run, DELTA, accountant=Accountant.RDP)
    assert alone <= ours <= theirs * (1 + 1e-6)
    assert ours > 0.45 * theirs


def test_with_the_same_knowledge_the_bound_is_the_published_one() -> None:
    """Theorem 6 of Papernot and Steinke with δ from divergences, as dp-accounting computes it."""
    law, run, orders = RunCount(8.0, math.inf), events.gaussian(2.0), np.array(rdp.ORDERS)
    second = RdpAccountant(rdp.ORDERS)
    second.compose(best_of([run], law))
    one = elementary.divergences_of(run, ADD_REMOVE, rdp.ORDERS)
    ours = law.divergences(orders, one, lambda epsilon: rdp.delta_of(one, epsilon))
    np.testing.assert_allclose(ours, second._rdp, rtol=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.5, 3.0, 12.0])
def test_delta_from_divergences_is_that_of_dp_accounting(epsilon: float) -> None:
    for sigma in (0.5, 2.0, 20.0):
        one = rdp.poisson_gaussian(1.0, sigma, rdp.ORDERS)
        theirs = compute_delta(rdp.ORDERS, one, epsilon)[0]
        assert rdp.delta_of(one, epsilon) == pytest.approx(float(theirs), rel=1e-9)


def test_the_cost_grows_with_the_runs_but_far_less_than_their_number() -> None:
    costs = [
        accountants.epsilon(best_of([RUN], RunCount(mean, 1.0)), DELTA)
        for mean in (1.0, 3.0, 10.0, 30.0)
    ]
    assert costs == sorted(costs)
    released = accountants.epsilon(events.repeated(RUN, 10), DELTA)
    assert costs[2] < 0.7 * released


def test_candidates_cost_what_the_dearest_does_and_no_less() -> None:
    law = RunCount(5.0, 1.0)
    cheap, dear = (events.repeated(events.gaussian(s), 3) for s in (8.0, 4.0))
    both = accountants.epsilon(best_of([cheap, dear, cheap], law), DELTA)
    assert both == pytest.approx(accountants.epsilon(best_of([dear], law), DELTA))


@pytest.mark.parametrize("sigmas", [(12.0, 4.0), (4.0, 8.0)], ids=["dear last", "dear first"])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_candidates_are_judged_by_the_largest_delta_wherever_it_stands(
    sigmas: tuple[float, float], law: RunCount
) -> None:
    """Candidates are sorted by their text, in which 12 comes before 4."""
    candidates = [events.repeated(events.gaussian(sigma), 3) for sigma in sigmas]
    both = best_of(candidates, law)
    assert candidates_of(both) == tuple(candidates)
    dear = accountants.epsilon(best_of([events.repeated(events.gaussian(4.0), 3)], law), DELTA)
    assert accountants.epsilon(both, DELTA) == pytest.approx(dear, rel=1e-12)


def test_selections_compose_with_other_events() -> None:
    law = RunCount(5.0, 1.0)
    chosen = best_of([RUN], law)
    both = events.composed([chosen, events.gaussian(5.0)])
    assert accountants.epsilon(both, DELTA) > accountants.epsilon(chosen, DELTA)
    twice = accountants.epsilon(events.repeated(chosen, 2), DELTA)
    assert twice == pytest.approx(accountants.epsilon(events.composed([chosen] * 2), DELTA))
    assert accountants.applied(chosen, DELTA, ADD_REMOVE, Accountant.PLD) is Accountant.RDP


def test_the_trade_off_curve_supports_the_same_promise() -> None:
    event = best_of([RUN], RunCount(5.0, 1.0))
    epsilon = accountants.epsilon(event, DELTA)
    curve = tradeoff.of(event, ADD_REMOVE)
    assert curve.delta(epsilon) <= DELTA * (1 + 1e-6)
    assert 1 - float(curve.misses(np.array([0.0]))[0]) < 1e-3


@pytest.mark.parametrize(
    "event",
    [
        best_of([RUN], RunCount(10.0, 1.0)),
        best_of([events.gaussian(2.0), RUN], RunCount(4.0, math.inf)),
    ],
)
def test_json_round_trip(event: dpa.DpEvent) -> None:
    assert events.from_json(events.to_json(event)) == event


def test_what_has_no_proof_is_refused() -> None:
    law = RunCount(5.0, 1.0)
    with pytest.raises(NoProofError, match="replace-one"):
        accountants.epsilon(best_of([RUN], law), DELTA, REPLACE)
    with pytest.raises(NoProofError, match="best of several"):
        accountants.epsilon(best_of([events.adaptive(RUN, 8.0)], law), DELTA)
    with pytest.raises(NoProofError):
        accountants.epsilon(best_of([dpa.LaplaceDpEvent(1.0)], law), DELTA)
    subset = events.subset(5, 100, events.bounded_gaussian(2.0))
    with pytest.raises(NoProofError):
        accountants.epsilon(best_of([subset], law), DELTA, REPLACE)


@pytest.mark.parametrize(
    ("mean", "shape"), [(0.5, 1.0), (501.0, 1.0), (5.0, -0.5), (5.0, math.nan), (math.nan, 1.0)]
)
def test_laws_that_are_none_are_refused(mean: float, shape: float) -> None:
    with pytest.raises(ArgumentError, match="number of runs"):
        RunCount(mean, shape)
