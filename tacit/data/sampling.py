"""Samplers: which records a step sees. Each supplies the event that its draws support."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from tacit.noise.source import RandomSource
from tacit.privacy import events

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class PoissonSampler:
    """Each record independently with probability batch_size/records; a sample may be empty.

    Guarantee: the samples of two steps are independent, and `event` is stated with the very rate
    that is drawn. The indices are private.
    """

    records: int
    batch_size: float
    source: RandomSource
    purpose: str = "sampling"
    """Samples for different ends are independent too."""

    @property
    def probability(self) -> float:
        """The rate, a multiple of 2⁻³²."""
        return events.sampling_probability(self.records, self.batch_size)

    def draw(self, step: int) -> Indices:
        """The records of one step."""
        words = self.source.words(self.purpose, step, self.records)
        return np.flatnonzero(words < np.uint64(round(self.probability * 2**32)))

    def event(self, release: DpEvent) -> DpEvent:
        """`release`, amplified by this sampling."""
        return events.poisson(self.probability, release)


@dataclass(frozen=True)
class ShuffledSampler:
    """Every record once an epoch in a fresh random order: for the non-private baseline only.

    No amplification is proven for it here, so it offers no event.
    """

    records: int
    batch_size: int
    source: RandomSource

    def draw(self, step: int) -> Indices:
        """The records of one step; the last batch of an epoch may be short."""
        per_epoch = -(-self.records // self.batch_size)
        epoch, batch = divmod(step, per_epoch)
        seed = self.source.torch_seed("shuffling", epoch)
        order = np.random.Generator(np.random.PCG64(seed)).permutation(self.records)
        return order[batch * self.batch_size : (batch + 1) * self.batch_size]


@dataclass(frozen=True)
class FixedOrderSampler:
    """Batches of an order that is drawn before training and does not depend on the records.

    Guarantee: in every epoch each record is in exactly one batch. Unless `reshuffled`, it is the
    same batch in every epoch, so two uses of a record lie exactly one epoch apart.
    """

    records: int
    batch_size: int
    source: RandomSource
    reshuffled: bool = False

    @property
    def batches(self) -> int:
        """Batches in an epoch; the last one may be short."""
        return -(-self.records // self.batch_size)

    def draw(self, step: int) -> Indices:
        """The records of one step."""
        epoch, batch = divmod(step, self.batches)
        order = _order(self.source, epoch if self.reshuffled else 0, self.records)
        return order[batch * self.batch_size : (batch + 1) * self.batch_size]


@dataclass(frozen=True)
class GroupedPoissonSampler:
    """Poisson samples from one group of records at a time, the groups taking turns.

    Guarantee: a record's group is fixed by its index alone; in each round of `groups` steps it
    can take part once, with the probability that `event` states. The indices are private.
    """

    records: int
    batch_size: float
    groups: int
    source: RandomSource

    @property
    def probability(self) -> float:
        """The rate within a group, a multiple of 2⁻³²."""
        return events.sampling_probability(self.records, self.batch_size * self.groups)

    def draw(self, step: int) -> Indices:
        """The records of one step."""
        words = self.source.words("sampling", step, self.records)
        taken = words < np.uint64(round(self.probability * 2**32))
        group = np.arange(self.records) % self.groups == step % self.groups
        return np.flatnonzero(taken & group)

    def event(self, release: DpEvent) -> DpEvent:
        """`release` in one round, amplified by this sampling."""
        return events.poisson(self.probability, release)


@dataclass(frozen=True)
class SubsetSampler:
    """A fresh uniform subset of exactly `batch_size` records at every step, in random order.

    Guarantee: every subset is as likely as any other, up to 2⁻⁴⁰, independently of other steps. The
    indices are private.
    """

    records: int
    batch_size: int
    source: RandomSource

    def draw(self, step: int) -> Indices:
        """The records of one step; cut into equal parts they are mini-sets."""
        return _subset(self.source, step, self.batch_size, self.records)


@dataclass(frozen=True)
class PartitionSampler:
    """Mini-sets that are fixed before training, of which every step draws some uniformly.

    Guarantee: who shares a mini-set with whom does not depend on the records and never changes.
    With `in_turn` an epoch goes through all sets, each exactly once.
    """

    records: int
    set_size: int
    mini_sets: int
    source: RandomSource
    in_turn: bool = False

    @property
    def sets(self) -> int:
        """Mini-sets of the partition; the last one may be short."""
        return -(-self.records // self.set_size)

    def draw(self, step: int) -> Indices:
        """The records of one step, mini-set after mini-set, a short one last."""
        order = _order(self.source, 0, self.records)
        if self.in_turn:
            first = step % -(-self.sets // self.mini_sets) * self.mini_sets
            chosen = np.arange(first, min(first + self.mini_sets, self.sets))
        else:
            chosen = _subset(self.source, step, min(self.mini_sets, self.sets), self.sets)
        parts = [
            order[which * self.set_size : (which + 1) * self.set_size] for which in np.sort(chosen)
        ]
        return np.concatenate(parts)


def _subset(source: RandomSource, step: int, size: int, of: int) -> Indices:
    """The first places of a random permutation (Fisher and Yates), from 64-bit words."""
    words = source.words("sampling", step, 2 * size).astype(np.uint64)
    draws = words[0::2] << np.uint64(32) | words[1::2]
    moved: dict[int, int] = {}
    chosen = np.empty(size, np.int64)
    for place in range(size):
        other = place + int(draws[place]) % (of - place)
        chosen[place] = moved.get(other, other)
        moved[other] = moved.get(place, place)
    return chosen


@lru_cache(maxsize=2)
def _order(source: RandomSource, epoch: int, records: int) -> Indices:
    seed = source.torch_seed("order", epoch)
    return np.random.Generator(np.random.PCG64(seed)).permutation(records)
