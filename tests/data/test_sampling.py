"""Poisson samples really are Poisson samples; shuffled batches would fail these tests."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tacit.data.sampling import GroupedPoissonSampler, PoissonSampler, ShuffledSampler
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


class EveryWord:
    """Stands in for a random source: every multiple of 2³²/count once, so shares are exact."""

    def words(self, purpose: str, step: int, count: int) -> np.ndarray:
        return (np.arange(count, dtype=np.uint64) << np.uint64(32)) // np.uint64(count)


@pytest.mark.parametrize("share", [1 / 128, 0.25, 37 / 64, 511 / 512])
def test_a_record_is_drawn_for_exactly_the_promised_share_of_words(share: float) -> None:
    """Too many by 0.2 % would be 32 or more of these 65,536 words."""
    records = 1 << 16
    source: Any = EveryWord()
    sampler = PoissonSampler(records, share * records, source)
    drawn = sampler.draw(0)
    assert len(drawn) == share * records == sampler.probability * records
    groups = 4
    grouped = GroupedPoissonSampler(records, share * records / groups, groups, source)
    turns = [grouped.draw(step) for step in range(groups)]
    assert sum(map(len, turns)) == share * records == grouped.probability * records
    assert all((turn % groups == step).all() for step, turn in enumerate(turns))


@pytest.mark.parametrize("batch_size", [0.001, 1, 37, 999.9])
def test_the_word_at_the_rate_is_not_drawn_and_the_one_below_is(batch_size: float) -> None:
    rate = events.sampling_probability(1000, batch_size)
    edge = int(rate * 2**32)
    assert edge == rate * 2**32

    class Edges:
        def words(self, purpose: str, step: int, count: int) -> np.ndarray:
            words = np.full(count, 2**32 - 1, dtype=np.uint64)
            words[:4] = (0, edge - 1, edge, edge + 1)
            return words

    source: Any = Edges()
    assert PoissonSampler(1000, batch_size, source).draw(0).tolist() == [0, 1]
    grouped = GroupedPoissonSampler(1000, batch_size, 1, source)
    assert grouped.draw(0).tolist() == [0, 1]


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
