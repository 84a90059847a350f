"""Bounds on ε: rarely too large for correct mechanisms, and not idle for leaky ones."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from tacit.audit import bounds
from tacit.audit.bounds import Bound
from tacit.audit.scores import Scores
from tacit.errors import ArgumentError
from tacit.privacy import gaussian

DELTA = 1e-4
CONFIDENCE = 0.95
MECHANISMS = 200
ALLOWED = int(binom.ppf(0.999, MECHANISMS, 1 - CONFIDENCE))
Mechanism = Callable[[np.random.Generator], tuple[Scores, float]]


def gaussian_mechanism(generator: np.random.Generator, coins: int = 400) -> tuple[Scores, float]:
    mu = float(generator.uniform(0.1, 2.0))
    heads = generator.random(coins) < 0.5
    values = generator.normal(size=coins) + mu * heads
    return Scores(values, heads), gaussian.epsilon_of(mu, DELTA)


def randomised_response(generator: np.random.Generator, coins: int = 400) -> tuple[Scores, float]:
    epsilon = float(generator.uniform(0.1, 3.0))
    heads = generator.random(coins) < 0.5
    kept = generator.random(coins) < 1 / (1 + math.exp(-epsilon))
    return Scores(np.where(kept, heads, ~heads).astype(float), heads), epsilon


def giving_away_with_probability_delta(generator: np.random.Generator) -> tuple[Scores, float]:
    """Randomised response that shows a coin openly with probability δ: (ε, δ) and no less."""
    scores, epsilon = randomised_response(generator)
    shown = generator.random(len(scores)) < DELTA
    return Scores(np.where(shown, 10.0 * scores.heads - 5, scores.values), scores.heads), epsilon


def one_noised_sum(generator: np.random.Generator, coins: int = 400) -> tuple[Scores, float]:
    """All scores hang on one number: a noised sum of the coins, each with a sign of its own."""
    mu = float(generator.uniform(0.1, 2.0))
    heads = generator.random(coins) < 0.5
    signs = generator.choice([-1.0, 1.0], coins)
    released = float(signs @ heads - signs.sum() / 2 + generator.normal() / mu)
    return Scores(released * signs, heads), gaussian.epsilon_of(mu, DELTA)


def alarms(mechanism: Mechanism, bound: Callable[[Scores, float], Bound]) -> int:
    found = 0
    for seed in range(MECHANISMS):
        scores, epsilon = mechanism(np.random.default_rng(seed))
        found += bound(scores, epsilon).epsilon > epsilon
    return found


INDEPENDENT = [gaussian_mechanism, randomised_response, giving_away_with_probability_delta]


@pytest.mark.parametrize(
    ("bound", "mechanism"),
    [
        *((bounds.clopper_pearson, mechanism) for mechanism in INDEPENDENT),
        *((bounds.one_run, mechanism) for mechanism in [*INDEPENDENT, one_noised_sum]),
    ],
)
def test_correct_mechanisms_rarely_raise_an_alarm(
    mechanism: Mechanism, bound: Callable[[Scores, float, float], Bound]
) -> None:
    assert alarms(mechanism, lambda scores, _: bound(scores, DELTA, CONFIDENCE)) <= ALLOWED


def test_fitted_noise_rarely_raises_an_alarm_for_gaussian_mechanisms() -> None:
    def bound(scores: Scores, epsilon: float) -> Bound:
        return fitted(scores, 1.0)

    assert alarms(gaussian_mechanism, bound) <= ALLOWED


def fitted(scores: Scores, mu: float) -> Bound:
    """The bound, with noise as a multiple of that of a Gaussian mechanism with this μ."""
    return bounds.fitted_noise(
        scores,
        CONFIDENCE,
        lambda noise, rate: float(ndtr(ndtri(rate) + mu / noise)),
        lambda noise: gaussian.epsilon_of(mu / noise, DELTA),
    )


def leaky(mu: float, coins: int) -> Scores:
    generator = np.random.default_rng(3)
    heads = generator.random(coins) < 0.5
    return Scores(generator.normal(size=coins) + mu * heads, heads)


def test_bounds_reach_a_good_part_of_the_truth() -> None:
    scores, truth = leaky(2.0, 20_000), gaussian.epsilon_of(2.0, DELTA)
    assert 0.35 * truth <= bounds.clopper_pearson(scores, DELTA, CONFIDENCE).epsilon <= truth
    assert 0.25 * truth <= bounds.one_run(scores, DELTA, CONFIDENCE).epsilon <= truth
    assert 0.9 * truth <= fitted(scores, 2.0).epsilon <= truth


def test_fitted_noise_is_the_gaussian_bound_whatever_noise_was_promised() -> None:
    scores = leaky(2.0, 5000)
    assert fitted(scores, 2.0).epsilon == pytest.approx(fitted(scores, 0.5).epsilon, rel=0.01)
    assert fitted(scores, 0.5).details["noise"] == pytest.approx(0.25, rel=0.15)


def test_scores_that_know_nothing_bound_nothing() -> None:
    scores = leaky(0.0, 2000)
    assert bounds.clopper_pearson(scores, DELTA, CONFIDENCE).epsilon < 0.3
    assert bounds.one_run(scores, DELTA, CONFIDENCE).epsilon == 0.0
    assert fitted(scores, 1.0).epsilon < 0.5


def test_probability_of_guesses_is_binomial_without_delta() -> None:
    chance = 1 / (1 + math.exp(-1.0))
    expected = float(binom.sf(79, 100, chance))
    assert bounds.guess_probability(500, 100, 80, 1.0, 0.0) == pytest.approx(expected)


def test_probability_of_guesses_counts_delta_as_the_theorem_does() -> None:
    coins, guesses, right, epsilon, delta = 50, 12, 10, 0.7, 1e-3
    chance = 1 / (1 + math.exp(-epsilon))
    law = [math.comb(guesses, k) * chance**k * (1 - chance) ** (guesses - k) for k in range(13)]
    worst = max(sum(law[max(0, right - i) : right]) / i for i in range(1, right + 1))
    expected = sum(law[right:]) + 2 * coins * delta * worst
    found = bounds.guess_probability(coins, guesses, right, epsilon, delta)
    assert found == pytest.approx(expected)


def test_too_few_coins_are_refused() -> None:
    with pytest.raises(ArgumentError, match="too few"):
        bounds.one_run(leaky(1.0, 5), DELTA, CONFIDENCE)
