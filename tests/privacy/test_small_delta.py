"""ε at δ far below what a plain Fourier transform resolves: finite, tight, never too small.

Second methods: closed forms in arbitrary precision, sums of positive terms only, and RDP.
"""

import math
import tracemalloc
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.privacy import accountants, events, pld
from tacit.privacy.accountants import Accountant
from tacit.privacy.gaussian_pair import GaussianPair
from tacit.privacy.relations import Relation

DELTAS = [1e-3, 1e-7, 5e-10, 1e-12, 1e-18, 1e-25]
ADD_REMOVE, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
Array = NDArray[np.float64]
RELATIVE, ABSOLUTE = 2e-3, 2e-2
"""How far above the true ε a bound may be: a single sampled step lies on few points."""


def sampled(rate: float, sigma: float, count: int) -> events.DpEvent:
    return events.repeated(events.poisson(rate, events.gaussian(sigma)), count)


def exact_delta(pair: GaussianPair, epsilon: float) -> mp.mpf:
    """δ(ε) of one step from the two normal laws, with 60 digits."""
    with mp.workdps(60):
        s, p, q, e = (mp.mpf(each) for each in (pair.sigma, pair.p, pair.q, epsilon))

        def excess(x: mp.mpf) -> mp.mpf:
            above, below = mp.exp((2 * x - 1) / (2 * s**2)), mp.exp((-2 * x - 1) / (2 * s**2))
            return mp.log(1 - p + p * above) - mp.log(1 - q + q * below) - e

        low, high = mp.mpf(-60), mp.mpf(60)
        if excess(high) <= 0:
            return mp.mpf(0)
        for _ in range(250):
            middle = (low + high) / 2
            low, high = (low, middle) if excess(middle) > 0 else (middle, high)

        def beyond(mean: int) -> mp.mpf:
            return mp.erfc((high - mean) / (s * mp.sqrt(2))) / 2

        first = (1 - p) * beyond(0) + p * beyond(1)
        return first - mp.exp(e) * ((1 - q) * beyond(0) + q * beyond(-1))


def assert_tight(epsilon: float, delta: float, true: Callable[[float], mp.mpf]) -> None:
    assert math.isfinite(epsilon)
    assert true(epsilon) <= delta
    if epsilon > ABSOLUTE:
        assert true(epsilon * (1 - RELATIVE) - ABSOLUTE) > delta


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize(
    ("sigma", "p", "q"),
    [
        (1.0, 0.01, 0.0),
        (1.0, 0.0, 0.01),
        (1.0, 0.01, 0.01),
        (0.4, 1e-4, 1e-4),
        (3.0, 0.5, 0.0),
        (2.0, 1.0, 1.0),
    ],
)
def test_one_step_is_exact(sigma: float, p: float, q: float, delta: float) -> None:
    pair = GaussianPair(sigma, p, q)
    found = pld.compose([(pair, 1)])
    assert_tight(found.epsilon(delta), delta, lambda epsilon: exact_delta(pair, epsilon))


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("count", [1, 7, 1000])
def test_many_plain_gaussians_are_one(count: int, delta: float) -> None:
    """n steps with μ each are one with √n·μ, whose δ is known in closed form."""
    mu = 2.0 / math.sqrt(count)
    found = pld.compose([(GaussianPair(1 / mu, 1.0, 0.0), count)])
    whole = GaussianPair(0.5, 1.0, 0.0)
    assert_tight(found.epsilon(delta), delta, lambda epsilon: exact_delta(whole, epsilon))


def positive_sums(pair: GaussianPair, count: int, step: float, up: bool) -> tuple[Array, Array]:
    """Losses of `count` steps and their probabilities, each loss rounded up or down to the grid.

    Every operation adds positive numbers, so all digits of the smallest probability are right.
    """
    from scipy.special import ndtr

    edges = np.linspace(-16, 16 + 1 / pair.sigma, 200_001) * pair.sigma
    tails = [ndtr(-np.abs(edges - mean) / pair.sigma) for mean in (0.0, 1.0)]
    laws = []
    for mean, tail in zip((0.0, 1.0), tails, strict=True):
        across = (edges[:-1] < mean) & (edges[1:] > mean)
        laws.append(np.where(across, 1 - tail[1:] - tail[:-1], np.abs(np.diff(tail))))
    mass = (1 - pair.p) * laws[0] + pair.p * laws[1]
    ends, _ = pair.loss_at(edges)
    losses = ends[1:] if up else ends[:-1]
    index = (np.ceil if up else np.floor)(losses / step).astype(np.int64)
    one = np.bincount(index - index.min(), mass)
    total, first = one, index.min()
    for _ in range(count - 1):
        total = np.convolve(total, one)
    return (count * first + np.arange(len(total))) * step, total


@pytest.mark.parametrize(("p", "q"), [(0.05, 0.0), (0.0, 0.05), (0.05, 0.05)])
@pytest.mark.parametrize("delta", [1e-5, 1e-10, 1e-16, 1e-22])
def test_a_few_steps_lie_between_sums_of_positive_terms(p: float, q: float, delta: float) -> None:
    pair, count = GaussianPair(1.2, p, q), 6
    epsilon = pld.compose([(pair, count)]).epsilon(delta)
    bounds = []
    for up in (False, True):
        losses, mass = positive_sums(pair, count, 2e-3, up)
        at = epsilon * (1 - RELATIVE) - ABSOLUTE if up else epsilon
        bounds.append(float(np.maximum(0.0, -np.expm1(at - losses)) @ mass))
    assert bounds[0] <= delta * (1 + 1e-9)
    if epsilon > ABSOLUTE:
        assert bounds[1] > delta


POINTS = [
    (rate, sigma, steps)
    for rate in (1e-4, 0.004, 0.1)
    for sigma, steps in ((0.6, 50), (1.0, 2000), (2.0, 50_000))
]


@pytest.mark.parametrize(("rate", "sigma", "steps"), POINTS)
def test_small_deltas_cost_less_than_rdp_says_and_more_than_larger_ones(
    rate: float, sigma: float, steps: int
) -> None:
    event = sampled(rate, sigma, steps)
    costs = [accountants.epsilon(event, delta) for delta in DELTAS]
    bounds = [accountants.epsilon(event, d, accountant=Accountant.RDP) for d in DELTAS]
    assert costs == sorted(costs) and math.isfinite(costs[-1])
    assert all(cost <= bound for cost, bound in zip(costs, bounds, strict=True))


@pytest.mark.parametrize(("rate", "sigma", "steps"), [each for each in POINTS if each[0] < 0.1])
@pytest.mark.parametrize("delta", [1e-9, 1e-11, 1e-14])
def test_replacing_costs_no_more_than_taking_out_and_putting_in(
    rate: float, sigma: float, steps: int, delta: float
) -> None:
    """(ε, δ) twice is (2ε, (1 + e^ε)·δ): finite, so replace-one must be."""
    event = sampled(rate, sigma, steps)
    once = accountants.epsilon(event, delta, ADD_REMOVE)
    twice = accountants.epsilon(event, (1 + math.exp(once)) * delta, REPLACE)
    alone = accountants.epsilon(event, delta, REPLACE)
    assert twice <= 2 * once * (1 + 1e-3) + 1e-9
    assert once <= alone < math.inf


def test_delta_and_epsilon_are_inverse() -> None:
    found = pld.compose([(GaussianPair(1.0, 0.01, 0.01), 300), (GaussianPair(2.0, 0.1, 0.1), 5)])
    for delta in DELTAS:
        epsilon = found.epsilon(delta)
        assert found.delta(epsilon) <= delta < found.delta(epsilon * (1 - 1e-3))


@pytest.mark.parametrize(("records", "batch"), [(60_000, 3), (2**31, 256), (2**31, 3)])
@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
def test_tiny_sampling_rates_need_little_memory(
    records: int, batch: int, relation: Relation
) -> None:
    event = sampled(batch / records, 0.6, 3 * 10**6)
    tracemalloc.start()
    found = accountants.epsilon(event, 0.1 / records, relation)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    bound = accountants.epsilon(event, 0.1 / records, ADD_REMOVE, accountant=Accountant.RDP)
    assert 0 < found < 3 * bound
    assert peak < 1e8
