"""Which records the steps of an epoch see: every one once, or every subset equally often."""

from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from tacit.data.sampling import (
    FixedOrderSampler,
    GroupedPoissonSampler,
    PartitionSampler,
    PoissonSampler,
    ShuffledSampler,
    SubsetSampler,
)
from tacit.noise.source import RandomSource

SOURCE = RandomSource.from_seed(6)
SIZES = [(50, 7), (50, 10), (50, 50), (7, 3), (9, 1), (23, 12)]
Epoch = list[list[int]]


def epochs(sampler: Any, batches: int, count: int) -> list[Epoch]:
    draws = [sampler.draw(step).tolist() for step in range(batches * count)]
    return [draws[batches * i : batches * (i + 1)] for i in range(count)]


def assert_divided(epoch: Epoch, records: int, size: int) -> None:
    """Each record is in one batch; all batches are full, but for the last one."""
    assert sorted(record for batch in epoch for record in batch) == list(range(records))
    lengths = [len(batch) for batch in epoch]
    assert lengths[:-1] == [size] * (len(epoch) - 1) and 0 < lengths[-1] <= size


@pytest.mark.parametrize(("records", "size"), SIZES)
@pytest.mark.parametrize("kind", ["shuffled", "fixed", "reshuffled"])
def test_every_record_is_in_one_batch_of_an_epoch(kind: str, records: int, size: int) -> None:
    sampler: Any = ShuffledSampler(records, size, SOURCE)
    if kind != "shuffled":
        sampler = FixedOrderSampler(records, size, SOURCE, reshuffled=kind == "reshuffled")
        assert sampler.batches == len(range(0, records, size))
    found = epochs(sampler, len(range(0, records, size)), 4)
    for epoch in found:
        assert_divided(epoch, records, size)
    assert all((epoch == found[0]) == (kind == "fixed") for epoch in found[1:])


def test_an_order_is_not_that_of_the_records_and_follows_the_key() -> None:
    first, again = (FixedOrderSampler(100, 100, RandomSource.from_seed(1)) for _ in range(2))
    other = FixedOrderSampler(100, 100, RandomSource.from_seed(2))
    assert first.draw(0).tolist() == again.draw(0).tolist() != list(range(100))
    assert first.draw(0).tolist() != other.draw(0).tolist()


def test_a_fixed_order_uses_a_record_exactly_one_epoch_apart_unless_told_otherwise() -> None:
    sampler = FixedOrderSampler(20, 6, SOURCE)
    assert not sampler.reshuffled
    uses = [step for step in range(40) if 3 in sampler.draw(step)]
    assert set(np.diff(uses)) == {sampler.batches} == {4}


class Words:
    """A random source that gives the words it is told."""

    def __init__(self, *words: int) -> None:
        self._words = words

    def words(self, purpose: str, step: int, count: int) -> np.ndarray:
        assert count == len(self._words)
        return np.array(self._words, dtype=np.uint32)


def test_subsets_are_the_start_of_a_shuffle_with_64_bits_for_each_place() -> None:
    """Fisher and Yates on a list: exchange place i with a place from i on, by i's 64-bit word."""
    generator = np.random.default_rng(5)
    for records, size in ((10, 10), (10, 4), (1000, 30), (2, 1)):
        words = generator.integers(0, 2**32, 2 * size)
        source: Any = Words(*words.tolist())
        order = list(range(records))
        for place in range(size):
            drawn = int(words[2 * place]) * 2**32 + int(words[2 * place + 1])
            other = place + drawn % (records - place)
            order[place], order[other] = order[other], order[place]
        found = SubsetSampler(records, size, source).draw(0)
        assert found.tolist() == order[:size] and found.dtype == np.int64


def test_every_subset_in_every_order_is_equally_likely() -> None:
    draws = 6000
    sampler = SubsetSampler(4, 2, SOURCE)
    counts = Counter(tuple(sampler.draw(step).tolist()) for step in range(draws))
    expected = draws / 12
    assert set(counts) == set(permutations(range(4), 2))
    assert sum((n - expected) ** 2 / expected for n in counts.values()) < 40  # 11 degrees


def test_mini_sets_never_change_and_each_step_draws_some_of_them() -> None:
    sampler = PartitionSampler(23, 4, 3, SOURCE)
    assert not sampler.in_turn and sampler.sets == 6
    turns = PartitionSampler(23, 4, 1, SOURCE, in_turn=True)
    sets = [tuple(turns.draw(step).tolist()) for step in range(6)]
    assert_divided([list(each) for each in sets], 23, 4)
    seen = Counter()
    for step in range(600):
        drawn = sampler.draw(step).tolist()
        parts = [tuple(drawn[i : i + 4]) for i in range(0, len(drawn), 4)]
        places = [sets.index(part) for part in parts]
        assert len(places) == 3 and places == sorted(set(places))
        seen[tuple(places)] += 1
    assert len(seen) == 20
    assert sum((n - 30) ** 2 / 30 for n in seen.values()) < 55  # 19 degrees of freedom


@pytest.mark.parametrize(
    ("records", "size", "together"), [(23, 4, 1), (23, 4, 4), (24, 4, 2), (24, 4, 6), (40, 3, 5)]
)
def test_sets_in_turn_are_all_seen_once_an_epoch(records: int, size: int, together: int) -> None:
    sampler = PartitionSampler(records, size, together, SOURCE, in_turn=True)
    sets = len(range(0, records, size))
    steps = len(range(0, sets, together))
    first, second, third = epochs(sampler, steps, 3)
    assert first == second == third
    assert_divided(first, records, size * together)
    assert sampler.sets == sets


def test_more_mini_sets_than_there_are_means_all_of_them() -> None:
    for in_turn in (False, True):
        drawn = PartitionSampler(10, 4, 9, SOURCE, in_turn).draw(3)
        assert sorted(drawn.tolist()) == list(range(10))


def test_groups_take_turns_and_stay_independent() -> None:
    """Records of a group are drawn each for itself, at the rate within the group."""
    sampler = GroupedPoissonSampler(400, 25.0, 4, SOURCE)
    assert sampler.probability == 0.25
    sizes = []
    for step in range(400):
        drawn = sampler.draw(step)
        assert (drawn % 4 == step % 4).all() and len(set(drawn.tolist())) == len(drawn)
        sizes.append(len(drawn))
    assert abs(np.mean(sizes) - 25) < 5 * np.sqrt(18.75 / 400)
    assert 12 < np.var(sizes) < 26


def test_samples_for_different_ends_and_steps_differ() -> None:
    one, other = (PoissonSampler(500, 50, SOURCE, purpose) for purpose in ("sampling", "testing"))
    assert one.draw(4).tolist() != other.draw(4).tolist()
    assert one == PoissonSampler(500, 50, SOURCE)
    subsets = SubsetSampler(50, 10, SOURCE)
    assert subsets.draw(0).tolist() != subsets.draw(1).tolist()


@pytest.mark.parametrize(
    "sampler",
    [
        PoissonSampler(9, 3, SOURCE),
        ShuffledSampler(9, 3, SOURCE),
        FixedOrderSampler(9, 3, SOURCE),
        GroupedPoissonSampler(9, 3, 2, SOURCE),
        SubsetSampler(9, 3, SOURCE),
        PartitionSampler(9, 3, 1, SOURCE),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_what_a_promise_was_made_for_cannot_be_changed(sampler: Any) -> None:
    with pytest.raises(AttributeError):
        sampler.records = 10
    assert sampler.records == 9
