"""The clipping engine whose sums are proven."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from tacit.clipping.contract import (
    Batch,
    ClippedSum,
    ClippingRule,
    Layout,
    LossFunction,
    check_losses,
)
from tacit.clipping.exact.building import program_of
from tacit.clipping.exact.grid import MOST_PARAMETERS, MOST_RECORDS
from tacit.clipping.exact.stages.stage import NotRowwiseError
from tacit.clipping.exact.sums import ExactSum
from tacit.errors import ModelError, NoProofError
from tacit.structure import Structure


class ExactEngine:
    """Clipped sums whose sensitivity holds for the bits that are computed.

    Guarantee: if one row of the batches changes in any way, or becomes empty, the computed sum
    moves by exactly the difference of that row's own contributions, each within the rule's
    bounds; for replaced records that is twice the bound, for absent ones once. All other rows'
    activations, norms and factors keep their bits. Proof: docs/proofs/sums.md.

    Args:
        model: A sequence of linear layers, convolutions, normalisations within records, pooling
            and elementwise functions, perhaps on top of an `nn.EmbeddingBag`; `NotRowwiseError`
            names a layer that is not covered.
        rule: How norms become factors.
        loss: The only loss function that is accepted: one that is known to keep rows apart.
        records: The public number of training records, which no step exceeds.

    >>> from tacit.clipping.rules import Flat
    >>> from tacit.losses import cross_entropy
    >>> engine = ExactEngine(nn.Linear(3, 2), Flat(1.0), cross_entropy, records=4)
    >>> batch = (torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))
    >>> engine.clipped_sum(cross_entropy, [batch], views=1).vector.dtype
    torch.float64
    """

    def __init__(
        self, model: nn.Module, rule: ClippingRule, loss: LossFunction, records: int
    ) -> None:
        self.layout = Layout.of(model, rule.grouping)
        self.rule = rule
        self._model = model
        self._loss = loss
        self._records = records
        self._structure = Structure(model)
        named = self._structure.parameters
        for name in self.layout.names:
            if named[name].dtype != torch.float32 or named[name].device.type != "cpu":
                raise NotRowwiseError(
                    name,
                    f"it is {named[name].dtype} on {named[name].device}; sums are proven for"
                    " float32 on the CPU",
                )
        if self.layout.size > MOST_PARAMETERS:
            raise NotRowwiseError("", f"it has more than {MOST_PARAMETERS:,} parameters")
        if records > MOST_RECORDS:
            raise NotRowwiseError("", f"there are more than {MOST_RECORDS:,} training records")
        self._program = program_of(model, {name: named[name] for name in self.layout.names})

    def check(self, features: Tensor) -> None:
        """Refuse records of a shape that the proof does not cover; their values play no part."""
        with torch.no_grad():
            self._scores(torch.zeros_like(features))

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that are covered, by the names of their parameters."""
        return tuple(dict.fromkeys(name.rpartition(".")[0] for name in self.layout.names))

    def clipped_sum(self, loss: LossFunction, batches: Iterable[Batch], views: int) -> ClippedSum:
        if loss is not self._loss:
            raise NoProofError(
                "numerics is 'proven', but the loss is not the one that the proof covers; use"
                " tacit.cross_entropy, or numerics 'best'"
            )
        if views != 1:
            raise NoProofError(
                f"views is {views}: sums over views are not proven; set training.views to 1, or"
                " numerics to 'best'"
            )
        if self._structure.current() is not self._structure:
            raise ModelError(
                "a module or parameter was replaced since the clipping engine was made; make a new"
                " one for the model as it is now"
            )
        total = ExactSum(self.layout, self.rule, self._records)
        for batch in batches:
            if len(batch[0]):
                with torch.no_grad():
                    _, uses = self._program.back(self._output_gradients(batch), input_needed=False)
                    total.add(uses)
        return ClippedSum(total.vector, self.layout, self.rule.bounds, self.rule.shares)

    def _output_gradients(self, batch: Batch) -> Tensor:
        scores = self._scores(batch[0])
        with torch.enable_grad():
            given = scores.detach().requires_grad_()
            losses = check_losses(self._loss(_Given(given), batch), len(batch[0]))
        return torch.autograd.grad(losses, given, torch.ones_like(losses))[0]

    def _scores(self, features: Tensor) -> Tensor:
        scores = self._program.run(features)
        if scores.dim() != 2:
            raise NotRowwiseError(
                "", f"its scores have {scores.dim()} dimensions, not one row for each record"
            )
        return scores


class _Given(nn.Module):
    """A model that answers with scores that are already there."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self._scores = scores

    def forward(self, _: Tensor) -> Tensor:
        return self._scores
