"""Per-record gradients in the open: slow, obvious, the oracle for every faster engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.linalg import vector_norm

from tacit.clipping.contract import (
    Batch,
    ClippedSum,
    ClippingRule,
    Layout,
    LossFunction,
    check_losses,
)

Gradients = Mapping[str, Tensor]


class ReferenceEngine:
    """Exact clipping from materialised per-record gradients.

    `vectorised` computes a micro-batch at once with torch.func; otherwise one record at a time,
    which any module survives.
    """

    def __init__(self, model: nn.Module, rule: ClippingRule, *, vectorised: bool = True) -> None:
        self.layout = Layout.of(model, rule.grouping)
        self._model = model
        self.rule = rule
        self._vectorised = vectorised

    def clipped_sum(self, loss: LossFunction, batches: Iterable[Batch], views: int) -> ClippedSum:
        first = next(p for p in self._model.parameters() if p.requires_grad)
        total = torch.zeros(self.layout.size, dtype=first.dtype, device=first.device)
        record_gradient = self._record_gradient(loss, views)
        for batch in batches:
            rows = batch[0].shape[0]
            if rows == 0:
                continue
            records = tuple(t.reshape(rows // views, views, *t.shape[1:]) for t in batch)
            parameters = self._parameters()
            if self._vectorised:
                per_record = vmap(record_gradient, in_dims=(None, 0), randomness="different")
                self._add(per_record(parameters, records), total)
            else:
                for i in range(rows // views):
                    one = record_gradient(parameters, tuple(t[i] for t in records))
                    self._add({name: g.unsqueeze(0) for name, g in one.items()}, total)
        return ClippedSum(total, self.layout, self.rule.bounds, self.rule.shares)

    def _parameters(self) -> dict[str, Tensor]:
        named = dict(self._model.named_parameters())
        return {name: named[name].detach() for name in self.layout.names}

    def _record_gradient(
        self, loss: LossFunction, views: int
    ) -> Callable[[dict[str, Tensor], Batch], Gradients]:
        bound = _LossOf(self._model, loss)

        def record_loss(parameters: dict[str, Tensor], record: Batch) -> Tensor:
            prefixed = {f"model.{name}": value for name, value in parameters.items()}
            losses: Tensor = functional_call(bound, prefixed, (record,))
            return check_losses(losses, views).mean()

        gradient: Callable[[dict[str, Tensor], Batch], Gradients] = grad(record_loss)
        return gradient

    def _add(self, gradients: Gradients, total: Tensor) -> None:
        flat = [gradients[name].reshape(len(gradients[name]), -1) for name in self.layout.names]
        records, groups = len(flat[0]), len(self.rule.bounds)
        squares = torch.zeros(records, groups, dtype=torch.float64, device=flat[0].device)
        for part, group in zip(flat, self.layout.groups, strict=True):
            squares[:, group] += vector_norm(part, dim=1, dtype=torch.float64).square()
        finite = torch.isfinite(squares).all(1, keepdim=True)
        factors = self.rule.factors(torch.where(finite, squares, 0.0).sqrt())
        factors = torch.where(finite, factors, 0.0).to(flat[0])
        for part, group, sums in zip(
            flat, self.layout.groups, total.split(self.layout.sizes), strict=True
        ):
            clean = part if bool(finite.all()) else torch.where(finite, part, 0.0)
            sums.add_(torch.mv(clean.t(), factors[:, group]))


class _LossOf(nn.Module):
    """A loss function as a module, so that `functional_call` can swap the model's parameters."""

    def __init__(self, model: nn.Module, loss: LossFunction) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Batch) -> Tensor:
        return self._loss(self.model, batch)
