"""The attacker's statistics are likelihood ratios of what the methods really release."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm

from tacit.audit import statistics
from tacit.errors import ArgumentError
from tacit.methods.dpftrl import stream_for
from tacit.noise.correlated import BandedStream, TreeStream
from tacit.noise.source import RandomSource
from tacit.privacy import factors
from tacit.privacy.fixed_order import Correlation, FixedOrderSchedule


def test_ratio_of_sampled_steps_is_that_of_the_mixtures() -> None:
    seen = np.array([[0.3, -1.0], [2.0, 0.1]], dtype=np.float32)
    rate, noise = 0.2, 1.3
    with_it = (1 - rate) * norm.pdf(seen, 0, noise) + rate * norm.pdf(seen, 1, noise)
    without = norm.pdf(seen, 0, noise)
    opposite = (1 - rate) * norm.pdf(seen, 0, noise) + rate * norm.pdf(seen, -1, noise)
    found = statistics.sampled(seen, rate, noise, replaced=False)
    np.testing.assert_allclose(found, np.log(with_it / without).sum(0), rtol=1e-5)
    found = statistics.sampled(seen, rate, noise, replaced=True)
    np.testing.assert_allclose(found, np.log(with_it / opposite).sum(0), rtol=1e-5)


@pytest.mark.parametrize(
    "correlation",
    [
        Correlation("tree"),
        Correlation("tree", reduced=False),
        Correlation("tree", restart_every=1, completion=True),
        Correlation("banded", bands=3),
    ],
)
def test_covariance_is_that_of_the_noise_that_is_added(correlation: Correlation) -> None:
    schedule = FixedOrderSchedule(6, 2, 7, 1.0, correlation)
    draws = statistics.most_draws(7)
    expected = statistics.noise_covariance(
        stream_for(schedule, draws, statistics.Draws(draws), {}), 7
    )
    real = stream_for(schedule, 60_000, RandomSource.from_seed(3), {})
    nothing = torch.zeros(60_000, dtype=torch.float64)
    noise = np.stack([real.release(step, nothing).numpy() for step in range(7)])
    np.testing.assert_allclose(noise @ noise.T / 60_000, expected, atol=0.06)


def test_ratio_in_order_is_that_of_the_normal_laws() -> None:
    covariance = np.array([[1.0, 0.4], [0.4, 2.0]])
    seen = np.array([[0.5], [-0.7]], dtype=np.float32)
    uses, noise = np.array([[1.0], [0.0]]), 1.5
    law = [multivariate_normal(mean, noise**2 * covariance) for mean in ([1, 0], [0, 0], [-1, 0])]
    logs = [one.logpdf(seen[:, 0]) for one in law]
    alone = statistics.in_order(seen, uses, covariance, noise, replaced=False)
    both = statistics.in_order(seen, uses, covariance, noise, replaced=True)
    assert alone[0] == pytest.approx(logs[0] - logs[1], rel=1e-5)
    assert both[0] == pytest.approx(logs[0] - logs[2], rel=1e-5)


def test_exposure_of_a_banded_factor_is_its_squared_sensitivity() -> None:
    steps, bands = 12, 4
    schedule = FixedOrderSchedule(8, 2, steps, 1.0, Correlation("banded", bands=bands))
    draws = statistics.most_draws(steps)
    stream = BandedStream(bands, draws, statistics.Draws(draws), {})
    covariance = statistics.noise_covariance(stream, steps)
    uses = np.zeros((steps, 1))
    uses[::4] = 1.0
    found = statistics.exposure(uses, covariance)[0]
    assert found == pytest.approx(schedule.sensitivity_squared, rel=1e-3)
    assert found <= schedule.sensitivity_squared


def test_groups_with_banded_noise_score_like_independent_sampled_releases() -> None:
    """Noise alone in, ratios of the plain sampled Gaussian out: the same law of the scores."""
    bands, rate, noise, canaries = 3, 0.3, 1.2, 4000
    column = float(np.linalg.norm(factors.square_root_coefficients(bands)))
    stream = BandedStream(bands, canaries, RandomSource.from_seed(8), {})
    nothing = torch.zeros(canaries, dtype=torch.float64)
    released = np.stack([stream.release(step, nothing).numpy() for step in range(9)])
    seen = released.astype(np.float32) * noise * column
    groups = np.arange(canaries) % bands
    found = statistics.in_groups(seen, bands, rate, noise, groups, replaced=False)
    fresh = np.random.default_rng(1).normal(size=(3, canaries)).astype(np.float32) * noise
    expected = statistics.sampled(fresh, rate, noise, replaced=False)
    first = groups == 0
    assert found[first].mean() == pytest.approx(expected.mean(), abs=0.02)
    assert found[first].std() == pytest.approx(expected.std(), rel=0.06)


def test_streams_with_too_many_steps_are_refused() -> None:
    with pytest.raises(ArgumentError, match="fewer epochs"):
        statistics.most_draws(100_000)


def test_a_stream_that_draws_more_than_was_foreseen_is_noticed() -> None:
    stream = TreeStream(8, 2, statistics.Draws(2), {})
    with pytest.raises(ArgumentError, match="more than 2 draws"):
        for step in range(8):
            stream.release(step, torch.zeros(2, dtype=torch.float64))
