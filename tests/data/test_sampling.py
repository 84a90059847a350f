"""Poisson samples really are Poisson samples; shuffled batches would fail these tests."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from tacit.data.sampling import PoissonSampler, ShuffledSampler
from tacit.noise.source import RandomSource
from tacit.privacy import events

RECORDS, SIZE, STEPS = 2000, 100, 600


def looks_poisson(draw: Callable[[int], np.ndarray]) -> bool:
    """Sizes spread as a binomial's, records independent within and between steps."""
    rate = SIZE / RECORDS
    table = np.zeros((STEPS, RECORDS), dtype=bool)
    for step in range(STEPS):
        table[step, draw(step)] = True
    sizes = table.sum(1)
    variance = RECORDS * rate * (1 - rate)
    mean_z = (sizes.mean() - SIZE) / math.sqrt(variance / STEPS)
    spread_z = (sizes.var() / variance - 1) / math.sqrt(2 / STEPS)
    repeats = (table[:-1] & table[1:]).sum()
    expected = (STEPS - 1) * RECORDS * rate**2
    repeat_z = (repeats - expected) / math.sqrt(expected)
    uses = table.sum(0)
    uses_z = (uses.var() / (STEPS * rate * (1 - rate)) - 1) / math.sqrt(2 / RECORDS)
    return max(abs(mean_z), abs(spread_z), abs(repeat_z), abs(uses_z)) < 5


def test_poisson_sampling_is_poisson() -> None:
    assert looks_poisson(PoissonSampler(RECORDS, SIZE, RandomSource.from_seed(0)).draw)


def test_the_test_rejects_shuffled_batches_and_fixed_sizes() -> None:
    source = RandomSource.from_seed(0)
    assert not looks_poisson(ShuffledSampler(RECORDS, SIZE, source).draw)
    generator = np.random.default_rng(0)
    assert not looks_poisson(lambda _: generator.choice(RECORDS, SIZE, replace=False))
    assert not looks_poisson(PoissonSampler(RECORDS, SIZE * 1.1, source).draw)


def test_event_and_draw_share_one_rate() -> None:
    sampler = PoissonSampler(1000, 37, RandomSource.from_seed(1))
    event = sampler.event(events.gaussian(1.0))
    assert event.sampling_probability == sampler.probability
    assert event == events.poisson(events.sampling_probability(1000, 37), events.gaussian(1.0))


def test_all_records_at_rate_one_and_often_none_at_a_tiny_rate() -> None:
    everyone = PoissonSampler(50, 50, RandomSource.from_seed(2))
    assert everyone.draw(0).tolist() == list(range(50))
    assert everyone.event(events.gaussian(1.0)) == events.gaussian(1.0)
    rare = PoissonSampler(50, 0.1, RandomSource.from_seed(2))
    assert any(len(rare.draw(step)) == 0 for step in range(20))


def test_draws_repeat_for_the_same_key_and_step_only() -> None:
    first, again = (PoissonSampler(500, 50, RandomSource.from_seed(3)) for _ in range(2))
    assert np.array_equal(first.draw(4), again.draw(4))
    assert not np.array_equal(first.draw(4), first.draw(5))


@pytest.mark.parametrize("size", [7, 10, 50])
def test_shuffling_uses_every_record_once_an_epoch(size: int) -> None:
    sampler = ShuffledSampler(50, size, RandomSource.from_seed(4))
    per_epoch = -(-50 // size)
    for epoch in range(2):
        seen = np.concatenate([sampler.draw(epoch * per_epoch + i) for i in range(per_epoch)])
        assert sorted(seen) == list(range(50))
