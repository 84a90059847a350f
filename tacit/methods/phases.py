"""Phased decay (paper 001, definitions 9 to 12): settings that follow the accuracy.

Accuracy must come from public records or be paid for: it decides about later noise, and whoever
sees the noise learns something of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from dp_accounting import DpEvent
from torch import nn

from tacit.clipping.contract import Batch, ClippedSum, Layout
from tacit.data.batches import Gatherer, Records
from tacit.data.sampling import PoissonSampler
from tacit.noise.gaussian import GaussianNoise
from tacit.noise.source import RandomSource
from tacit.privacy import events
from tacit.weight_writes import weights_unwritten

_LAYOUT = Layout(("wrong answers",), (torch.Size([1]),), (0,))
_ROWS = 2048


@dataclass(frozen=True)
class Dials:
    """What decays: both noises, the threshold, a factor on the learning rate."""

    noise: float
    test_noise: float
    beta: float
    rate: float = 1.0


@dataclass(frozen=True)
class PhasedDecay:
    """Definitions 10 and 11: fast while accuracy grows by more than `progress`, slow otherwise."""

    fast: float
    slow: float
    progress: float

    def turned(self, dials: Dials, growth: float) -> Dials:
        """The settings after an update that changed the accuracy by `growth`."""
        if growth > self.progress:
            by = self.fast
            return replace(
                dials,
                noise=dials.noise * by,
                test_noise=dials.test_noise * by,
                rate=dials.rate * by,
            )
        by = self.slow
        return replace(dials, noise=dials.noise * by, beta=dials.beta * by, rate=dials.rate * by)


class Feedback(Protocol):
    """Where the accuracy comes from; `event` is what asking costs, None where it is free."""

    sentence: str
    event: DpEvent | None

    def draw(self, step: int) -> Iterable[Batch]:
        """The records that are asked."""
        ...

    def accuracy(self, step: int, model: nn.Module, batches: Iterable[Batch]) -> float:
        """The share of right answers, noised where the records are private."""
        ...


class PublicFeedback:
    """Accuracy on public records: costs nothing, protects none of them."""

    sentence = "on public records, which get no protection"
    event = None

    def __init__(self, records: Records) -> None:
        self._records = records

    def draw(self, step: int) -> Iterable[Batch]:
        """All of them."""
        for start in range(0, len(self._records), _ROWS):
            yield self._records.batch(torch.arange(start, min(start + _ROWS, len(self._records))))

    def accuracy(self, step: int, model: nn.Module, batches: Iterable[Batch]) -> float:
        """The share of right answers."""
        return 1 - _wrong_answers(model, batches) / len(self._records)


class ChargedFeedback:
    """Wrong answers in a Poisson sample of the private records, with noise.

    Guarantee: PoissonSampled(q, Gaussian(σ)) on a count that one record moves by one. The wrong
    ones are counted because they are few: the size of the sample, which varies too, hardly enters.
    """

    def __init__(
        self, sampler: PoissonSampler, gatherer: Gatherer, source: RandomSource, noise: float
    ) -> None:
        self._sampler = sampler
        self._gatherer = gatherer
        self._noise = GaussianNoise(source, noise, purpose="feedback noise")
        self.event: DpEvent | None = sampler.event(events.gaussian(noise))
        self.sentence = (
            "on private records, each asked with probability"
            f" {sampler.probability:.8g}; the number of wrong answers gets noise {noise:g} and"
            " every question is charged"
        )

    def draw(self, step: int) -> Iterable[Batch]:
        """A sample of its own."""
        return self._gatherer.micro_batches(self._sampler.draw(step), 0)

    def accuracy(self, step: int, model: nn.Module, batches: Iterable[Batch]) -> float:
        """One less the noised count over the expected size of the sample."""
        with weights_unwritten(list(model.parameters())):
            count = torch.tensor([float(_wrong_answers(model, batches))])
        clipped = ClippedSum(count, _LAYOUT, (1.0,), (1.0,))
        private = self._noise.privatise(clipped, step, float(self._sampler.batch_size))
        return 1 - float(private.vector)


def _wrong_answers(model: nn.Module, batches: Iterable[Batch]) -> int:
    wrong = 0
    model.eval()
    with torch.no_grad():
        for batch in batches:
            wrong += int((model(batch[0]).argmax(1) != batch[-1]).sum())
    model.train()
    return wrong
