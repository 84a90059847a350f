"""Trade-off functions: exact, composed, and the paper's approximation beside them."""

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from tacit.errors import ArgumentError
from tacit.privacy import events, tradeoff
from tacit.privacy.relations import Relation
from tacit.privacy.tradeoff import GaussianTradeOff

REPLACE = Relation.REPLACE_ONE
ALPHAS = np.array([0.0, 1e-4, 0.01, 0.1, 0.5, 0.9, 1.0])


def test_without_sampling_the_curve_is_exactly_gaussian() -> None:
    curve = tradeoff.of(events.repeated(events.gaussian(4.0), 4), REPLACE)
    assert isinstance(curve, GaussianTradeOff) and curve.mu == pytest.approx(1.0)
    expected = ndtr(ndtri(1 - ALPHAS) - 1.0)
    np.testing.assert_allclose(curve.misses(ALPHAS), expected)
    assert curve.epsilon(1e-5) == pytest.approx(4.37718, abs=1e-5)
    assert curve.delta(4.37718) == pytest.approx(1e-5, rel=1e-3)


def test_supporting_lines_rebuild_a_gaussian_from_below() -> None:
    exact = GaussianTradeOff(1.3)
    rebuilt = tradeoff.ComposedTradeOff.of(exact)
    alphas = np.linspace(0, 1, 101)
    gap = exact.misses(alphas) - rebuilt.misses(alphas)
    assert gap.min() > -1e-12 and gap.max() < 1e-4


def test_the_curve_of_a_run_lies_below_guessing_and_is_convex() -> None:
    event = events.repeated(events.subset(64, 6400, events.bounded_gaussian(1.0)), 300)
    curve = tradeoff.of(event, REPLACE)
    alphas = np.linspace(0, 1, 201)
    found = curve.misses(alphas)
    assert np.all(found <= 1 - alphas + 1e-12)
    assert np.all(np.diff(found, 2) >= -1e-9) and np.all(np.diff(found) <= 1e-12)
    back = np.interp(alphas, found[::-1], alphas[::-1])
    np.testing.assert_allclose(found[20:-20], back[20:-20], atol=2e-3)


def test_power_is_what_epsilon_and_delta_allow() -> None:
    event = events.repeated(events.subset(64, 6400, events.bounded_gaussian(1.0)), 300)
    curve = tradeoff.of(event, REPLACE)
    for delta in (1e-6, 1e-3):
        epsilon = curve.epsilon(delta)
        assert curve.delta(epsilon) <= delta * (1 + 1e-9)
        assert tradeoff.power(curve, 0.01) <= math.exp(epsilon) * 0.01 + delta + 1e-4
    assert 0.01 < tradeoff.power(curve, 0.01) < 1
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        tradeoff.power(curve, 1.5)


def test_an_unprotected_run_hides_nothing() -> None:
    from dp_accounting import NonPrivateDpEvent

    curve = tradeoff.of(NonPrivateDpEvent(), REPLACE)
    assert [tradeoff.power(curve, rate) for rate in (0.0, 0.01)] == [1.0, 1.0]
    assert curve.delta(100.0) == 1.0
    assert math.isinf(curve.epsilon(1e-5))


def test_noise_too_small_for_the_grid_gives_an_honest_curve() -> None:
    event = events.repeated(events.subset(1, 2, events.bounded_gaussian(0.01)), 3)
    curve = tradeoff.of(event, REPLACE)
    assert math.isinf(curve.epsilon(1e-5)) and tradeoff.power(curve, 0.1) == 1.0


@pytest.mark.parametrize(
    ("sigma", "h", "mu", "epsilon"),
    [(2.5, 1.51419, 0.52128, 2.08813), (1.5, 5.78308, 1.99091, 9.94136)],
)
def test_central_limit_vectors_of_the_paper(
    sigma: float, h: float, mu: float, epsilon: float
) -> None:
    effective = sigma / math.sqrt(8)
    assert tradeoff.limit_rate(effective) == pytest.approx(h, abs=6e-6)
    limit = tradeoff.central_limit(64 / 54_000, 50 * 54_000 / 64, effective)
    assert limit.mu == pytest.approx(mu, abs=6e-6)
    assert limit.epsilon(1e-5) == pytest.approx(epsilon, abs=6e-6)


def test_central_limit_is_close_where_it_should_be_and_too_small_in_places() -> None:
    """Many rounds of little loss each: within a percent. Few: the claim is below the truth."""

    def both(size: int, of: int, sigma: float, rounds: int) -> tuple[float, float]:
        event = events.repeated(events.subset(size, of, events.bounded_gaussian(sigma)), rounds)
        proven = tradeoff.of(event, REPLACE).epsilon(1e-5)
        return tradeoff.central_limit(size / of, rounds, sigma).epsilon(1e-5), proven

    claimed, proven = both(64, 54_000, 1.5, 42_188)
    assert claimed == pytest.approx(proven, rel=0.01)
    claimed, proven = both(64, 54_000, 0.5, 5_000)
    assert claimed < 0.75 * proven


def test_noise_of_nothing_has_no_limit() -> None:
    assert math.isinf(tradeoff.central_limit(0.001, 1000, 0.01875 / math.sqrt(62)).epsilon(1e-5))
