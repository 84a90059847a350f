"""One release of noised vectors; a head is computed or trained from them, as long as one likes.

Proof: docs/proofs/sanitization.md, S1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from dp_accounting import DpEvent
from torch import Tensor

from tacit.clipping.contract import Batch, Layout, LossFunction, check_losses
from tacit.data.batches import Gatherer
from tacit.data.sampling import ShuffledSampler
from tacit.errors import DataError
from tacit.methods.base import Method, Promise
from tacit.methods.heads import Prototypes
from tacit.models.sanitization import Split
from tacit.noise.gaussian import post_processed
from tacit.optim import PrivateOptimizer
from tacit.privacy.sanitized import SanitizedSchedule


class OneTimeRelease(Method):
    """Releases every record's sanitized vector in its first step, and only post-processes later.

    Guarantee: step 0 is one Gaussian release under replace-features, of an encoder that is frozen
    before private records are seen; no later step looks at a private record, and a run whose
    vectors were lost does not release them again. With `prototypes` the head is computed from the
    vectors, in a single step.
    """

    def __init__(
        self,
        promise: Promise,
        schedule: SanitizedSchedule,
        split: Split,
        gatherer: Gatherer,
        sampler: ShuffledSampler,
        optimizer: PrivateOptimizer,
        memory: dict[str, Tensor],
        head_names: tuple[str, ...],
        prototypes: Prototypes | None = None,
    ) -> None:
        self.promise = promise
        self._schedule, self._split, self._gatherer = schedule, split, gatherer
        self._sampler, self._optimizer, self._memory = sampler, optimizer, memory
        self._prototypes = prototypes
        shapes = tuple(p.shape for p in split.head.parameters())
        self._layout = Layout(head_names, shapes, (0,) * len(shapes))

    def charge(self, step: int) -> DpEvent:
        return self._schedule.charge(step)

    def admits(self, spent: Counter[DpEvent], step: int) -> bool:
        """A second release, with other noise, would cost as much as the first."""
        return step > 0 or not spent[self.charge(0)]

    def draw(self, step: int) -> Iterable[Batch]:
        """All records for the release, none afterwards."""
        if step > 0:
            return ()
        return self._gatherer.micro_batches(np.arange(len(self._gatherer)), 0)

    def step(self, step: int, loss: LossFunction, batches: Iterable[Batch]) -> None:
        if step == 0:
            self._release(batches)
        if self._prototypes is not None:
            self._prototypes.take(self._memory["vectors"], self._memory["labels"])
            return
        chosen = torch.from_numpy(self._sampler.draw(step))
        batch = self._memory["vectors"][chosen], self._memory["labels"][chosen]
        losses = check_losses(loss(self._split.head, batch), len(chosen))
        gradients = torch.autograd.grad(losses.mean(), list(self._split.head.parameters()))
        vector = torch.cat([g.flatten() for g in gradients])
        self._optimizer.apply(post_processed(vector, self._layout), step)

    def _release(self, batches: Iterable[Batch]) -> None:
        vectors, labels = released_vectors(self._split, batches)
        if len(vectors) != len(self._gatherer):
            raise DataError("the first step must be given every training record, in order")
        self._memory["vectors"], self._memory["labels"] = vectors, labels


def released_vectors(split: Split, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """The sanitized vector of every record beside its public label."""
    split.layer.train()
    split.layer.begin(0)
    pairs = list(_vectors(split, batches))
    return torch.cat([v for v, _ in pairs]), torch.cat([y for _, y in pairs])


def _vectors(split: Split, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
    """The encoder runs as in evaluation: without dropout, so that heads meet what it will give."""
    for part in split.encoder:
        part.eval()
    with torch.no_grad():
        for batch in batches:
            yield split.layer.noised(split.activations(batch[0])), batch[-1]
