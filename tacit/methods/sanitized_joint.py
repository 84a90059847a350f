"""The encoder by DP-SGD, the head on noised activations, from independent samples.

Proof: docs/proofs/sanitization.md, S2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from dp_accounting import DpEvent
from torch import Tensor, nn

from tacit.clipping.contract import Batch, ClippingEngine, Layout, LossFunction, check_losses
from tacit.data.batches import Gatherer
from tacit.data.sampling import PoissonSampler
from tacit.methods.base import Method, Promise
from tacit.methods.heads import Prototypes
from tacit.methods.sanitized_watch import Watch
from tacit.models.sanitization import Split
from tacit.noise.gaussian import GaussianNoise, post_processed
from tacit.noise.source import RandomSource
from tacit.optim import PrivateOptimizer
from tacit.privacy.sanitized import SanitizedSchedule
from tacit.weight_writes import weights_unwritten


class Below(nn.Module):
    """The network as a function of its encoder: the head is used but is not a part of it.

    Parameters keep the names that they have in the whole network.
    """

    def __init__(self, split: Split) -> None:
        super().__init__()
        for index, part in enumerate(split.encoder):
            self.add_module(str(index), part)
        self._above = (split,)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.children():
            x = part(x)
        split = self._above[0]
        scores: Tensor = split.head(split.layer.bounded(x))
        return scores


@dataclass(frozen=True)
class Samplers:
    """Independent Poisson samples of equal rate: one for gradients, one for activations."""

    gradients: PoissonSampler
    activations: PoissonSampler


class JointTraining(Method):
    """Every step releases the noised gradient of one sample and the noised vectors of another.

    Guarantee: step t is Poisson(q, Gaussian(noise)) composed with one noised vector for each
    record of an independent sample, seen by all; the head's update is computed from the vectors
    and their public labels alone: a step along the loss, or with `prototypes` their class means.
    """

    def __init__(
        self,
        promise: Promise,
        schedule: SanitizedSchedule,
        split: Split,
        engine: ClippingEngine,
        gatherer: Gatherer,
        samplers: Samplers,
        optimizer: PrivateOptimizer,
        source: RandomSource,
        watch: Watch,
        head_names: tuple[str, ...],
        prototypes: Prototypes | None = None,
    ) -> None:
        self.promise = promise
        self._schedule, self._split, self._engine = schedule, split, engine
        self._gatherer, self._samplers, self._optimizer = gatherer, samplers, optimizer
        self._source, self._watch, self._prototypes = source, watch, prototypes
        self._noise = GaussianNoise(source, schedule.noise)
        shapes = tuple(p.shape for p in split.head.parameters())
        self._head = Layout(head_names, shapes, (0,) * len(shapes))

    def charge(self, step: int) -> DpEvent:
        return self._schedule.charge(step)

    def draw(self, step: int) -> Iterable[Batch]:
        """The records whose gradients are summed."""
        return self._batches(self._samplers.gradients, step)

    def _batches(self, sampler: PoissonSampler, step: int) -> Iterable[Batch]:
        seed = self._source.torch_seed("augmentation", step)
        return self._gatherer.micro_batches(sampler.draw(step), seed)

    def step(self, step: int, loss: LossFunction, batches: Iterable[Batch]) -> None:
        with weights_unwritten(self._optimizer.weights):
            clipped = self._engine.clipped_sum(loss, batches, self._gatherer.views)
            released = self._released(step)
        below = self._noise.privatise(clipped, step, self._schedule.batch_size)
        self._optimizer.apply(below, step)
        if self._prototypes is None:
            above = self._head_gradient(loss, released)
            self._optimizer.apply(post_processed(above, self._head), step)
        else:
            for vectors, labels in released:
                self._prototypes.take(vectors, labels)
        self._watch.after(step, self._split.layer.spread)

    def _released(self, step: int) -> list[tuple[Tensor, Tensor]]:
        """The noised vectors of the step's second sample, beside their labels."""
        layer = self._split.layer
        layer.begin(step)
        with torch.no_grad():
            return [
                (layer.noised(self._split.activations(batch[0])), batch[-1])
                for batch in self._batches(self._samplers.activations, step)
            ]

    def _head_gradient(self, loss: LossFunction, released: list[tuple[Tensor, Tensor]]) -> Tensor:
        """From the released vectors alone; who took part is public, so a mean is allowed."""
        head = self._split.head
        parameters = list(head.parameters())
        total = torch.zeros(self._head.size)
        rows = 0
        for vectors, labels in released:
            losses = check_losses(loss(head, (vectors, labels)), len(vectors))
            gradients = torch.autograd.grad(losses.sum(), parameters)
            total += torch.cat([g.flatten() for g in gradients])
            rows += len(vectors)
        return total / max(rows, 1)

    @property
    def stopped(self) -> bool:
        """Whether a flag has ended the run."""
        return self._watch.stopped

    def trace(self) -> dict[str, Any]:
        """What the run saw of itself."""
        return self._watch.trace()
