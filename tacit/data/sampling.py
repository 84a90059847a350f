"""Samplers: which records a step sees. Each supplies the event that its draws support."""

from __future__ import annotations

from dataclasses import dataclass

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

    @property
    def probability(self) -> float:
        """The rate, a multiple of 2⁻³²."""
        return events.sampling_probability(self.records, self.batch_size)

    def draw(self, step: int) -> Indices:
        """The records of one step."""
        words = self.source.words("sampling", step, self.records)
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
