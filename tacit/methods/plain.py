"""Plain SGD: the non-private baseline. Its ledger says so and no certificate is issued for it.

On vectors that were released before it is post-processing, and the release's guarantee carries
over to the weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from dp_accounting import DpEvent, NonPrivateDpEvent, NoOpDpEvent
from torch import nn

from tacit.clipping.contract import Batch, Layout, LossFunction, check_losses
from tacit.data.batches import Gatherer, TensorRecords
from tacit.data.released import Release
from tacit.data.sampling import PoissonSampler, ShuffledSampler
from tacit.errors import RunError
from tacit.fixed_state import ANY_STATE
from tacit.method_sections import PlainRecipe
from tacit.methods.base import Method, Promise
from tacit.methods.parts import Parts, step_count
from tacit.noise.gaussian import unprotected
from tacit.noise.source import RandomSource
from tacit.optim import PrivateOptimizer
from tacit.privacy.relations import Relation


class PlainSgd(Method):
    """Mean gradients of shuffled batches, without clipping or noise: protects nothing.

    Guarantee: with `release`, the weights are a function of what that release gave away and of
    public values. The first step is charged with the whole release, once, the others with nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        steps: int,
        sampler: ShuffledSampler | PoissonSampler,
        gatherer: Gatherer,
        optimizer: PrivateOptimizer,
        source: RandomSource,
        release: Release | None = None,
    ) -> None:
        self._model = model
        self._release = release
        self._layout = Layout.of(model, lambda names: [0] * len(names))
        self._sampler = sampler
        self._gatherer = gatherer
        self._optimizer = optimizer
        self._source = source
        self.promise = Promise(
            method="plain",
            relation=release.relation if release else Relation.ADD_OR_REMOVE_ONE,
            steps=steps,
            released=(
                *(("the vectors that it trains on, before this run",) if release else ()),
                "the weights after every step",
            ),
            sampling="shuffled batches",
            proof="docs/proofs/sanitization.md" if release else None,
            details={"records": sampler.records, **_variant(release)},
            public=tuple(f"by the release: {each}" for each in release.public) if release else (),
            warnings=tuple(f"of the release: {each}" for each in release.warnings)
            if release
            else (),
            changing_state={ANY_STATE: _why_any_state(release)},
        )

    def charge(self, step: int) -> DpEvent:
        if self._release is None:
            return NonPrivateDpEvent()
        return NoOpDpEvent() if step else self._release.event

    def owed(self, step: int, spent: Counter[DpEvent]) -> DpEvent:
        """The release was made before the run: once it is paid for, a first step repeated with
        other random numbers gives away nothing more of it."""
        paid = self._release is not None and spent[self._release.event]
        return NoOpDpEvent() if paid else self.charge(step)

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


def _why_any_state(release: Release | None) -> str:
    if release is None:
        return "nothing is protected"
    return "the vectors that it trains on were released before, so all that follows is public"


def _variant(release: Release | None) -> dict[str, str]:
    if release is None:
        return {}
    head = release.ledger_head
    return {"variant": f"post-processing of the release whose ledger ends with {head}"}


def _check_same(release: Release | None, promised: dict[str, Any] | None) -> None:
    """A run that goes on was charged for one release; another one would go unpaid."""
    if promised is not None and promised.get("variant") != _variant(release).get("variant"):
        raise RunError(
            "the records are not of the release that the run was started on, which is all that it"
            " paid for. Put that release back where it was, or start a new run elsewhere"
        )


def from_recipe(parts: Parts, chosen: PlainRecipe) -> PlainSgd:
    """The baseline of a recipe."""
    count, size = len(parts.records), parts.recipe.training.batch_size
    release = parts.records.release if isinstance(parts.records, TensorRecords) else None
    _check_same(release, parts.promised)
    return PlainSgd(
        parts.model,
        step_count(parts.recipe, count),
        ShuffledSampler(count, size, parts.source),
        parts.gatherer(),
        parts.optimizer,
        parts.source,
        release,
    )
