"""Plain SGD: the non-private baseline. Its ledger says so and no certificate is issued for it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from dp_accounting import DpEvent, NonPrivateDpEvent
from torch import nn

from tacit.clipping.contract import Batch, Layout, LossFunction, check_losses
from tacit.data.batches import Gatherer
from tacit.data.sampling import PoissonSampler, ShuffledSampler
from tacit.method_sections import PlainRecipe
from tacit.methods.base import Method, Promise
from tacit.methods.parts import Parts, step_count
from tacit.noise.gaussian import unprotected
from tacit.noise.source import RandomSource
from tacit.optim import PrivateOptimizer
from tacit.privacy.relations import Relation


class PlainSgd(Method):
    """Mean gradients of shuffled batches, without clipping or noise: protects nothing."""

    def __init__(
        self,
        model: nn.Module,
        steps: int,
        sampler: ShuffledSampler | PoissonSampler,
        gatherer: Gatherer,
        optimizer: PrivateOptimizer,
        source: RandomSource,
    ) -> None:
        self._model = model
        self._layout = Layout.of(model, lambda names: [0] * len(names))
        self._sampler = sampler
        self._gatherer = gatherer
        self._optimizer = optimizer
        self._source = source
        self.promise = Promise(
            method="plain",
            relation=Relation.ADD_OR_REMOVE_ONE,
            steps=steps,
            released=("the weights after every step",),
            sampling="shuffled batches",
            proof=None,
            details={"records": sampler.records},
        )

    def charge(self, step: int) -> DpEvent:
        return NonPrivateDpEvent()

    def draw(self, step: int) -> Iterable[Batch]:
        seed = self._source.torch_seed("augmentation", step)
        return self._gatherer.micro_batches(self._sampler.draw(step), seed)

    def step(self, step: int, loss: LossFunction, batches: Iterable[Batch]) -> None:
        named = dict(self._model.named_parameters())
        trained = [named[name] for name in self._layout.names]
        total = torch.zeros(self._layout.size, dtype=trained[0].dtype, device=trained[0].device)
        rows = 0
        for batch in batches:
            losses = check_losses(loss(self._model, batch), len(batch[0]))
            gradients = torch.autograd.grad(losses.sum(), trained, allow_unused=True)
            rows += len(losses)
            for sums, g in zip(total.split(self._layout.sizes), gradients, strict=True):
                if g is not None:
                    sums.add_(g.flatten())
        self._optimizer.apply(unprotected(total / max(rows, 1), self._layout), step)


def from_recipe(parts: Parts, chosen: PlainRecipe) -> PlainSgd:
    """The baseline of a recipe."""
    count, size = len(parts.records), parts.recipe.training.batch_size
    return PlainSgd(
        parts.model,
        step_count(parts.recipe, count),
        ShuffledSampler(count, size, parts.source),
        parts.gatherer(),
        parts.optimizer,
        parts.source,
    )
