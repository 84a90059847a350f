"""C_q(G) composed: against quadrature, against the pairs it must dominate, and its refusals."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dpa_pld
from scipy.special import ndtr, ndtri

from tacit.errors import ArgumentError, NoProofError
from tacit.privacy import accountants, events, pld
from tacit.privacy.accountants import Accountant
from tacit.privacy.gaussian_pair import GaussianPair
from tacit.privacy.relations import Relation
from tacit.privacy.subsets import SubsetPair

REPLACE = Relation.REPLACE_ONE


def quadrature_losses(sigma: float, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Losses and their probabilities under the first member, on a fine grid of outputs."""
    edges = np.linspace(0.5, 0.5 + 14 * sigma, 1501)
    middle = (edges[1:] + edges[:-1]) / 2
    zero = np.diff(ndtr(edges / sigma))
    one = np.diff(ndtr((edges - 1) / sigma))
    mixture = (1 - rate) * zero + rate * one
    losses = np.log1p(rate * np.expm1((2 * middle - 1) / (2 * sigma**2)))
    rest = 1 - mixture.sum() - zero.sum()
    return np.concatenate((losses, -losses, [0.0])), np.concatenate((mixture, zero, [rest]))


@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.1), (0.6, 0.3), (2.0, 0.9)])
@pytest.mark.parametrize("epsilon", [0.05, 0.5])
def test_two_rounds_are_what_quadrature_finds(sigma: float, rate: float, epsilon: float) -> None:
    losses, mass = quadrature_losses(sigma, rate)
    both = losses[:, None] + losses[None, :]
    weights = mass[:, None] * mass[None, :]
    expected = float(np.sum(weights * np.maximum(0.0, -np.expm1(epsilon - both))))
    found = pld.compose([(SubsetPair(sigma, rate), 2)]).delta(epsilon)
    assert found == pytest.approx(expected, rel=2e-3, abs=1e-7)
    assert found > expected * (1 - 1e-4)


def test_one_round_is_the_larger_direction_at_every_epsilon() -> None:
    pair = SubsetPair(0.8, 0.2)
    joined = pld.compose([(pair, 1)])
    above, below = (pld.compose([(each, 1)]) for each in pair.directions)
    for epsilon in (-2.0, -0.3, 0.0, 0.3, 2.0):
        expected = max(above.delta(epsilon), below.delta(epsilon))
        assert joined.delta(epsilon) == pytest.approx(expected, rel=1e-3, abs=1e-9)
    assert above.delta(0.3) > below.delta(0.3) and above.delta(-0.3) < below.delta(-0.3)


@pytest.mark.parametrize(
    ("size", "of", "sigma", "rounds"),
    [(64, 54_000, 2.5 / 8**0.5, 42_188), (64, 54_000, 1.5 / 8**0.5, 42_188)],
)
def test_the_bound_is_never_below_a_true_pair(
    size: int, of: int, sigma: float, rounds: int
) -> None:
    """The record is in the sample or not; it is replaced by its opposite; by one in between."""
    rate = size / of
    bound = accountants.epsilon(
        events.repeated(events.subset(size, of, events.bounded_gaussian(sigma)), rounds),
        1e-5,
        REPLACE,
    )
    for pair in (
        GaussianPair(sigma, rate, 0.0),
        GaussianPair(sigma, 0.0, rate),
        GaussianPair(2 * sigma, rate, rate),
    ):
        assert bound > pld.compose([(pair, rounds)]).epsilon(1e-5)
    peer = dpa_pld.from_gaussian_mechanism(sigma, sampling_prob=rate, use_connect_dots=True)
    assert bound > peer.self_compose(rounds).get_epsilon_for_delta(1e-5)


def test_composing_the_maximum_costs_more_than_the_larger_composition() -> None:
    pair = SubsetPair(1.0, 0.05)
    joined = pld.compose([(pair, 500)]).epsilon(1e-5)
    apart = max(pld.compose([(each, 500)]).epsilon(1e-5) for each in pair.directions)
    assert joined > 1.1 * apart


def test_drawing_everybody_is_no_sampling() -> None:
    assert events.subset(10, 10, events.bounded_gaussian(2.0)) == events.bounded_gaussian(2.0)
    whole = pld.compose([(SubsetPair(2.0, 1.0), 9)])
    exact = accountants.epsilon(events.repeated(events.bounded_gaussian(2.0), 9), 1e-5, REPLACE)
    assert whole.epsilon(1e-5) == pytest.approx(exact, rel=1e-4)
    assert whole.epsilon(1e-5) >= exact * (1 - 1e-9)


@pytest.mark.parametrize("relation", list(Relation))
def test_a_bounded_vector_moves_as_far_under_every_relation(relation: Relation) -> None:
    event = events.repeated(events.bounded_gaussian(2.0), 4)
    for accountant in (Accountant.PLD, Accountant.GAUSSIAN):
        assert accountants.epsilon(event, 1e-5, relation, accountant) == pytest.approx(
            4.37718, 1e-5
        )
    single = accountants.epsilon(events.gaussian(1.0), 1e-5, accountant=Accountant.RDP)
    found = accountants.epsilon(event, 1e-5, relation, Accountant.RDP)
    assert found == pytest.approx(single, rel=1e-9)


def test_fixed_numbers_of_records_are_refused_when_a_record_is_added() -> None:
    event = events.subset(64, 1000, events.bounded_gaussian(1.0))
    with pytest.raises(NoProofError, match="replace-one"):
        accountants.epsilon(event, 1e-5, Relation.ADD_OR_REMOVE_ONE)
    with pytest.raises(NoProofError, match="pld"):
        accountants.epsilon(event, 1e-5, REPLACE, Accountant.RDP)
    with pytest.raises(NoProofError, match="cannot be accounted"):
        accountants.epsilon(events.subset(64, 1000, events.gaussian(1.0)), 1e-5, REPLACE)


def test_counts_compose_with_other_events() -> None:
    step = events.subset(10, 1000, events.bounded_gaussian(1.0))
    moments = events.fixed_order(events.bounded_gaussian(5.0))
    together = accountants.epsilon(
        events.composed([events.repeated(step, 7), moments]), 1e-5, REPLACE
    )
    apart = accountants.epsilon(events.composed([step] * 7 + [moments]), 1e-5, REPLACE)
    assert together == pytest.approx(apart, rel=1e-9)
    assert together > accountants.epsilon(moments, 1e-5, REPLACE)


def test_the_ledger_holds_the_new_events() -> None:
    step = events.fixed_order(events.subset(3, 44, events.bounded_gaussian(1.5)))
    written = events.to_json(step)
    assert written == {"fixed-order": {"subset": [3, 44], "of": {"bounded-gaussian": 1.5}}}
    assert events.from_json(written) == step
    with pytest.raises(ArgumentError, match="subset of 45"):
        events.from_json({"subset": [45, 44], "of": {"bounded-gaussian": 1.5}})
    with pytest.raises(ArgumentError, match="positive"):
        events.bounded_gaussian(math.nan)


def test_the_single_round_has_the_textbook_trade_off_function() -> None:
    """C_q(G) = min(f_q, its inverse), with a segment of slope −1 where they cross."""
    sigma, rate = 1.0, 0.4
    alpha = np.linspace(0.001, 0.999, 999)
    f_q = rate * ndtr(ndtri(1 - alpha) - 1 / sigma) + (1 - rate) * (1 - alpha)
    inverse = np.interp(alpha, f_q[::-1], alpha[::-1])
    lowest = np.minimum(f_q, inverse)
    tangent = np.min(lowest + alpha) - alpha
    expected = np.where(np.abs(alpha - lowest) < 0.2, np.minimum(lowest, tangent), lowest)
    loss = pld.compose([(SubsetPair(sigma, rate), 1)])
    lines = [(e, loss.delta(e)) for e in np.linspace(-4, 4, 2001)]
    for a, e in zip(alpha[::111], expected[::111], strict=True):
        found = max(1 - d - math.exp(epsilon) * a for epsilon, d in lines)
        assert found == pytest.approx(e, abs=2e-3)
