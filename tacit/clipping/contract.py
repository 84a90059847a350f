"""The contract between clipping and noise: a sum that knows how far one record can move it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tacit.errors import ModelError, NoProofError
from tacit.privacy.relations import Relation

Batch = tuple[Tensor, ...]
LossFunction = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True)
class Layout:
    """Where each trainable parameter lies in the flat vector, and which norm group it is in."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    groups: tuple[int, ...]

    @classmethod
    def of(cls, model: nn.Module, grouping: Callable[[Sequence[str]], Sequence[int]]) -> Layout:
        """The layout of a model's trainable parameters, grouped by name."""
        named = [(name, p.shape) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise ModelError("the model has no trainable parameters; unfreeze at least one")
        names = tuple(name for name, _ in named)
        return cls(names, tuple(shape for _, shape in named), tuple(grouping(names)))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of elements of each parameter."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def size(self) -> int:
        """Length of the flat vector."""
        return sum(self.sizes)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """One past the last element of each parameter in the flat vector."""
        return tuple(accumulate(self.sizes))

    @cached_property
    def starts(self) -> dict[str, int]:
        """The first element of each parameter in the flat vector."""
        return dict(zip(self.names, (0, *self.ends), strict=False))

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The flat vector cut into tensors of the parameters' shapes, sharing its memory."""
        assert vector.shape == (self.size,) and vector.is_contiguous()
        start = vector.storage_offset()
        return {
            name: vector.as_strided(shape, strides, start + offset)
            for name, shape, strides, offset in self._places
        }

    @cached_property
    def _places(self) -> list[tuple[str, torch.Size, tuple[int, ...], int]]:
        """Name, shape, strides and first element of each parameter: `views` is called in every
        step, and views of splits take twice as long."""
        strides = (tuple(math.prod(s[d + 1 :]) for d in range(len(s))) for s in self.shapes)
        return list(zip(self.names, self.shapes, strides, self.starts.values(), strict=True))


class ClippingRule(Protocol):
    """How per-record norms become factors, and what bound follows.

    For one record's scaled gradient, Σ_h shares[h]·(‖group h‖/bounds[h])² is at most one. Where
    groups are clipped apart, shares are the parts of the privacy cost that they may cause and add
    up to one; where the whole is clipped at once, each may be one.
    """

    @property
    def bounds(self) -> tuple[float, ...]: ...

    @property
    def shares(self) -> tuple[float, ...]: ...

    def grouping(self, names: Sequence[str]) -> Sequence[int]:
        """The norm group of each parameter."""
        ...

    def factors(self, norms: Tensor) -> Tensor:
        """Factors [records, groups] from norms of the same shape, all finite."""
        ...


@dataclass
class ClippedSum:
    """Σ over the batch of per-record gradients, each scaled so that its groups obey `bounds`.

    Guarantee: for two batches that differ by one record, present or absent, `vector` moves so
    that Σ_h shares[h]·(move of group h/bounds[h])² ≤ 1, no group by more than its bound; where the
    record is replaced, by at most twice as much. Noise is added in the vector's own memory, and
    only once.
    """

    vector: Tensor
    layout: Layout
    bounds: tuple[float, ...]
    shares: tuple[float, ...]
    _spent: bool = field(default=False, init=False)

    def spend(self) -> Tensor:
        """The vector, for its noise; a second time there is no sum left in it."""
        if self._spent:
            raise NoProofError(
                "this ClippedSum was noised before, and its memory now holds the result; compute a"
                " new one for another release"
            )
        self._spent = True
        return self.vector

    def sensitivity(self, relation: Relation) -> tuple[float, ...]:
        """How far group h can move between neighbours."""
        times = 2.0 if relation in (Relation.REPLACE_ONE, Relation.REPLACE_FEATURES) else 1.0
        return tuple(times * bound for bound in self.bounds)

    def noise_scales(self, multiplier: float, relation: Relation) -> tuple[float, ...]:
        """Standard deviation of each parameter's noise, for the Gaussian mechanism with this
        multiplier: group h gets multiplier·Δ_h/√share_h, so that in units of its own noise the
        whole vector moves by at most 1/multiplier."""
        moved = self.sensitivity(relation)
        each = [multiplier * m / math.sqrt(s) for m, s in zip(moved, self.shares, strict=True)]
        return tuple(each[group] for group in self.layout.groups)


class ClippingEngine(Protocol):
    """Computes clipped sums; the slow oracle and every fast engine look the same from outside."""

    layout: Layout
    rule: ClippingRule
    """The rule in force; another one with the same groups may take its place between steps."""

    def clipped_sum(self, loss: LossFunction, batches: Iterable[Batch], views: int) -> ClippedSum:
        """The clipped sum over all micro-batches together.

        `loss(model, batch)` returns one loss per row of the batch. With `views` > 1 the rows of a
        record follow each other and their losses are averaged before clipping. Records whose
        gradient is not finite contribute zero. No batches, or empty ones, give a sum of zero.
        """
        ...


def check_losses(losses: Tensor, rows: int) -> Tensor:
    """Refuse a loss that was already averaged: clipping must see every record by itself."""
    if losses.shape != (rows,):
        raise ModelError(
            f"the loss function returned a tensor of {losses.dim()} dimensions that has not one"
            " value per row; it must return one loss per row (reduction='none')"
        )
    return losses
