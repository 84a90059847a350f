"""Batch clipping: the gradient of a whole mini-set is clipped, not that of a record (paper 003).

A record of a mini-set can turn its gradient into any other, but the clipped gradient stays in its
ball. So replacing, adding or removing a record moves the sum over mini-sets by at most twice the
bound, and layers that mix the records of a set, such as BatchNorm, are covered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from tacit.clipping.contract import (
    Batch,
    ClippedSum,
    ClippingRule,
    Layout,
    LossFunction,
    check_losses,
)
from tacit.errors import ArgumentError


class SetPass(Protocol):
    """Any first-order pass over the records of one mini-set; the model is left as it was."""

    def __call__(
        self, model: nn.Module, trained: Sequence[nn.Parameter], loss: LossFunction, batch: Batch
    ) -> list[Tensor]:
        """One tensor for each trained parameter, in its shape."""
        ...


def mean_gradient(
    model: nn.Module, trained: Sequence[nn.Parameter], loss: LossFunction, batch: Batch
) -> list[Tensor]:
    """The gradient of the mean loss over the set."""
    losses = check_losses(loss(model, batch), len(batch[0]))
    found = torch.autograd.grad(losses.mean(), list(trained), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(trained, found, strict=True)]


@contextmanager
def weights_kept(trained: Sequence[nn.Parameter]) -> Iterator[list[Tensor]]:
    """The weights as they are, which are put back whatever happens."""
    before = [p.detach().clone() for p in trained]
    try:
        yield before
    finally:
        for old, p in zip(before, trained, strict=True):
            p.data.copy_(old)


@dataclass(frozen=True)
class OwnPass:
    """A pass of the user's own: whatever it does to the weights is undone, its answer checked."""

    of: SetPass

    def __call__(
        self, model: nn.Module, trained: Sequence[nn.Parameter], loss: LossFunction, batch: Batch
    ) -> list[Tensor]:
        with weights_kept(trained):
            found = [part.detach().clone() for part in self.of(model, trained, loss, batch)]
        if [part.shape for part in found] != [p.shape for p in trained]:
            raise ArgumentError(
                f"set_pass returned {len(found)} tensors that do not match the {len(trained)}"
                " trained parameters; return one for each, in its shape and order"
            )
        return found


@dataclass(frozen=True)
class MomentumPass:
    """Gradient descent with momentum over `pieces` of the set; how far it went, per piece and rate.

    With one piece this is the mean gradient. Weights are put back whatever happens.
    """

    pieces: int = 4
    rate: float = 0.1
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.pieces < 1 or not self.rate > 0 or not 0 <= self.momentum < 1:
            raise ArgumentError(
                f"pieces is {self.pieces}, rate {self.rate}, momentum {self.momentum}; they must be"
                " at least 1, above 0, and in [0, 1)"
            )

    def __call__(
        self, model: nn.Module, trained: Sequence[nn.Parameter], loss: LossFunction, batch: Batch
    ) -> list[Tensor]:
        speeds = [torch.zeros_like(p) for p in trained]
        size = -(-len(batch[0]) // self.pieces)
        parts = list(zip(*(tensor.split(size) for tensor in batch), strict=True))
        with weights_kept(trained) as before:
            for part in parts:
                for p, speed, g in zip(
                    trained, speeds, mean_gradient(model, trained, loss, part), strict=True
                ):
                    speed.mul_(self.momentum).add_(g)
                    p.data.sub_(speed, alpha=self.rate)
            return [
                (old - p.detach()) / (self.rate * len(parts))
                for old, p in zip(before, trained, strict=True)
            ]


class MiniSetEngine:
    """Clips each batch it is given as one mini-set.

    Guarantee: the sum moves by at most twice the rule's bounds when any one mini-set changes in
    any way, in units of the rule; a set whose gradient is not finite contributes zero.
    """

    def __init__(
        self, model: nn.Module, rule: ClippingRule, set_pass: SetPass = mean_gradient
    ) -> None:
        self.layout = Layout.of(model, rule.grouping)
        self.rule = rule
        self._model = model
        self._pass = set_pass

    def clipped_sum(self, loss: LossFunction, batches: Iterable[Batch], views: int) -> ClippedSum:
        named = dict(self._model.named_parameters())
        trained = [named[name] for name in self.layout.names]
        total = torch.zeros(self.layout.size, dtype=trained[0].dtype, device=trained[0].device)
        for batch in batches:
            if len(batch[0]):
                self._add(self._pass(self._model, trained, loss, batch), total)
        return ClippedSum(total, self.layout, self.rule.bounds, self.rule.shares)

    def _add(self, parts: list[Tensor], total: Tensor) -> None:
        groups = len(self.rule.bounds)
        squares = torch.zeros(1, groups, dtype=torch.float64, device=total.device)
        for part, group in zip(parts, self.layout.groups, strict=True):
            squares[0, group] += vector_norm(part, dtype=torch.float64).square()
        finite = bool(torch.isfinite(squares).all())
        norms = squares.sqrt() if finite else torch.zeros_like(squares)
        factors = self.rule.factors(norms)[0].to(total)
        if not finite:
            return
        for part, group, sums in zip(
            parts, self.layout.groups, total.split(self.layout.sizes), strict=True
        ):
            sums.add_(part.flatten() * factors[group])
