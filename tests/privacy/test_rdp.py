"""Rényi divergences against fine sums and closed forms, and their conversions."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest

from tacit.privacy import rdp

ORDERS = [1.1, 1.7, 2.0, 3.5, 16.0, 64.0, 256.0]


def divergence(rate: float, sigma: float, order: float) -> float:
    """ln E[(p/q)^α]/(α − 1) of the mixture against the centre, summed on a much finer grid."""
    z = np.arange(-40_000, int(1000 * order / sigma) + 40_000) / 1000
    mixture = np.logaddexp(math.log1p(-rate), math.log(rate) + z / sigma - 1 / (2 * sigma**2))
    logs = order * mixture - z**2 / 2 - math.log(2 * math.pi) / 2
    peak = float(logs.max())
    return (peak + math.log(math.fsum(np.exp(logs - peak)) * 1e-3)) / (order - 1)


def test_at_two_the_divergence_has_a_closed_form() -> None:
    """E[(p/q)²] = 1 + q²(e^(1/σ²) − 1)."""
    for rate in (1e-4, 0.02, 0.5, 0.99):
        for sigma in (0.1, 0.15, 0.7, 2.0, 30.0):
            exact = math.log1p(rate**2 * math.expm1(1 / sigma**2))
            found = rdp.poisson_gaussian(rate, sigma, [2.0])[0]
            assert found == pytest.approx(exact, rel=1e-9, abs=3e-14)


def test_sums_over_binomial_terms_at_whole_orders() -> None:
    """E[(p/q)^α] = Σ_k C(α, k)(1 − q)^(α−k) q^k e^(k(k−1)/2σ²) (Mironov et al. 2019)."""
    for rate, sigma, order in ((0.01, 0.5, 5), (0.2, 1.1, 12), (0.5, 3.0, 40), (0.03, 0.1, 3)):
        with mp.workdps(40):
            total = mp.fsum(
                mp.binomial(order, k)
                * mp.mpf(1 - rate) ** (order - k)
                * mp.mpf(rate) ** k
                * mp.exp(mp.mpf(k * (k - 1)) / (2 * mp.mpf(sigma) ** 2))
                for k in range(order + 1)
            )
            exact = float(mp.log(total) / (order - 1))
        found = rdp.poisson_gaussian(rate, sigma, [float(order)])[0]
        assert found == pytest.approx(exact, rel=1e-9)


def test_ends_of_the_range_of_rates_and_noise() -> None:
    assert rdp.poisson_gaussian(0.0, 1.0, ORDERS).tolist() == [0.0] * len(ORDERS)
    whole = rdp.poisson_gaussian(1.0, 2.0, ORDERS)
    assert whole.tolist() == pytest.approx([order / 8 for order in ORDERS])
    tiny = rdp.poisson_gaussian(0.5, 0.0999, ORDERS)
    assert tiny.tolist() == pytest.approx([order / (2 * 0.0999**2) for order in ORDERS])
    sampled = rdp.poisson_gaussian(0.01, 0.1, [2.0])
    assert sampled[0] < 0.95 * 2.0 / (2 * 0.1**2)
    assert (rdp.poisson_gaussian(1e-9, 50.0, ORDERS) >= 0).all()


@pytest.mark.parametrize("rate", [1e-3, 0.3, 0.999, 1.0])
def test_a_release_that_a_public_coin_lets_happen(rate: float) -> None:
    orders, inner = np.array([1.1, 2.0, 7.0, 64.0]), np.array([0.03, 0.4, 2.5, 900.0])
    found = rdp.or_nothing(rate, inner, orders.tolist())
    with mp.workdps(30):
        for order, given, got in zip(orders, inner, found, strict=True):
            moment = 1 - mp.mpf(rate) + rate * mp.exp((mp.mpf(order) - 1) * given)
            assert got == pytest.approx(float(mp.log(moment) / (mp.mpf(order) - 1)), rel=1e-12)


def converted(order: float, divergence: float, delta: float) -> float:
    """ε of one order (Canonne, Kamath and Steinke 2020)."""
    constant = math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1)
    return divergence + constant


@pytest.mark.parametrize("scale", [0.01, 0.2, 1.5])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-12])
def test_epsilon_is_the_least_over_all_orders(scale: float, delta: float) -> None:
    divergences = scale * np.array(rdp.ORDERS)
    epsilon, order = rdp.epsilon_of(divergences, delta)
    each = [converted(a, scale * a, delta) for a in rdp.ORDERS]
    assert epsilon == pytest.approx(max(0.0, min(each)), rel=1e-12)
    assert order == rdp.ORDERS[int(np.argmin(each))]


def test_orders_are_close_enough_for_runs_of_every_size() -> None:
    """No more than 3 % is lost against the best real order; δ and noise as in practice."""
    assert list(rdp.ORDERS) == sorted(set(rdp.ORDERS)) and min(rdp.ORDERS) == 1.1
    usual = {*(1 + x / 10 for x in range(1, 100)), *range(11, 65), 128, 256, 512}
    assert usual <= set(rdp.ORDERS) and len(rdp.ORDERS) == 99 + 54 + 7
    for scale in np.geomspace(1e-4, 8.0, 60):
        epsilon, _ = rdp.epsilon_of(scale * np.array(rdp.ORDERS), 1e-5)
        best = min(converted(float(a), scale * a, 1e-5) for a in np.geomspace(1.01, 3000, 4000))
        assert best * (1 - 1e-6) <= epsilon <= 1.03 * best


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 9.0])
@pytest.mark.parametrize("scale", [1e-3, 0.02, 0.3, 4.0])
def test_delta_is_the_least_over_all_orders(epsilon: float, scale: float) -> None:
    divergences = scale * np.array(rdp.ORDERS)
    each = [
        math.exp(min(0.0, (a - 1) * (r - epsilon) + (a - 1) * math.log(1 - 1 / a) - math.log(a)))
        for a, r in zip(rdp.ORDERS, divergences, strict=True)
    ]
    distance = math.sqrt(1 - math.exp(-float(divergences[0])))
    expected = min(1.0, *each, distance)
    assert rdp.delta_of(divergences, epsilon) == pytest.approx(expected, rel=1e-9)


def test_delta_of_nothing_is_nothing() -> None:
    assert rdp.delta_of(np.zeros(len(rdp.ORDERS)), 0.0) < 1e-100
    assert rdp.delta_of(np.full(len(rdp.ORDERS), 1e6), 0.1) == 1.0
    assert rdp.delta_of(np.full(len(rdp.ORDERS), math.inf), 0.1) == 1.0


@pytest.mark.parametrize("order", [1.5, 8.0, 64.0])
@pytest.mark.parametrize("epsilon", [0.7, 3.0, 80.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_the_largest_divergence_within_a_budget(order: float, epsilon: float, delta: float) -> None:
    found = rdp.divergence_for(order, epsilon, delta)
    assert converted(order, found, delta) == pytest.approx(epsilon, rel=1e-9)
    if found > 0:
        assert rdp.epsilon_at(order, found, delta) <= epsilon
        assert rdp.epsilon_at(order, found * (1 + 1e-10) + 1e-10, delta) > epsilon


def test_one_order_costs_what_its_formula_says() -> None:
    for order, value in ((2.0, 0.5), (8.0, 1.0), (64.0, 30.0)):
        expected = converted(order, value, 1e-5)
        assert rdp.epsilon_at(order, value, 1e-5) == pytest.approx(expected, rel=1e-12)


def test_rounding_of_a_budget_is_on_the_safe_side() -> None:
    """Whatever the digits, what was allowed costs no more than the budget."""
    generator = np.random.default_rng(1)
    for _ in range(300):
        order, epsilon = 1 + float(generator.exponential(6)), float(generator.exponential(4))
        found = rdp.divergence_for(order, epsilon, 1e-5)
        if found > 0:
            assert rdp.epsilon_at(order, found, 1e-5) <= epsilon
            assert converted(order, found, 1e-5) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize(
    ("rate", "sigma"), [(0.01, 1.0), (1 / 235, 0.6), (0.3, 4.0), (0.9, 2.0), (0.02, 0.35)]
)
def test_divergences_are_those_of_the_integral(rate: float, sigma: float) -> None:
    orders = [order for order in ORDERS if order / sigma < 100]
    found = rdp.poisson_gaussian(rate, sigma, orders)
    expected = [divergence(rate, sigma, order) for order in orders]
    assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-13)
