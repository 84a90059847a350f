"""The step that DP-SGD and DP-FTRL share: gather, clip, add noise, divide, update."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tacit.clipping.contract import Batch, ClippedSum, ClippingEngine, LossFunction
from tacit.data.batches import Gatherer
from tacit.data.sampling import Indices
from tacit.noise.gaussian import PrivateGradient
from tacit.noise.source import RandomSource
from tacit.optim import PrivateOptimizer


class Sampler(Protocol):
    """Which records a step sees."""

    def draw(self, step: int) -> Indices: ...


class Noise(Protocol):
    """What makes a private gradient of a clipped sum."""

    def privatise(self, clipped: ClippedSum, step: int, denominator: float) -> PrivateGradient: ...


@dataclass(frozen=True)
class ClippedSteps:
    """Everything a step is made of. The sum is divided by `denominator`, a public constant."""

    sampler: Sampler
    engine: ClippingEngine
    noise: Noise
    gatherer: Gatherer
    optimizer: PrivateOptimizer
    source: RandomSource
    denominator: float

    def draw(self, step: int) -> Iterable[Batch]:
        """The records of a step, in micro-batches."""
        seed = self.source.torch_seed("augmentation", step)
        return self.gatherer.micro_batches(self.sampler.draw(step), seed)

    def take(self, step: int, loss: LossFunction, batches: Iterable[Batch]) -> None:
        """One update of the weights from the noised sum."""
        clipped = self.engine.clipped_sum(loss, batches, self.gatherer.views)
        private = self.noise.privatise(clipped, step, self.denominator)
        self.optimizer.apply(private, step)
