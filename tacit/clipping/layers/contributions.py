"""Per-record gradients of one parameter in the form that is cheapest to hold."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from tacit import native

_WIDE = (torch.float32, torch.float64)
_FEW_TERMS = 100

Outer = tuple[native.Rows | None, native.Rows]
"""Inputs and outputs, [records, width] and [records, height]: a record's gradient is the outer
product of its rows; without inputs it is the row of outputs."""


class Contribution(ABC):
    """The gradients of all records for one slot, not necessarily written out.

    Guarantee: `squared_norms` and `add_weighted` speak of exactly the same gradients, so that
    what is added to a sum is what was measured.
    """

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """‖gradient‖² of each record; called once, before `add_weighted`."""

    @abstractmethod
    def add_weighted(self, factors: Tensor, total: Tensor) -> None:
        """Add Σ factor · gradient over the records to `total`, a tensor of the slot's shape."""

    def write_weighted(self, factors: Tensor, total: Tensor) -> None:
        """The same for a `total` that holds nothing yet, not even zeros."""
        self.add_weighted(factors, total.zero_())

    def outer(self) -> Outer | None:
        """What compiled kernels need to measure this and add it up, if they can read it."""
        return None

    @abstractmethod
    def per_record(self) -> Tensor:
        """The gradients written out as [records, *slot shape]."""

    @abstractmethod
    def silence(self, records: Tensor) -> None:
        """Make the gradients of the marked records zero, whatever they were."""


def squared_rows(tensor: Tensor) -> Tensor:
    """Squared Euclidean norm of each row, accumulated in at least single precision."""
    flat = tensor if tensor.dim() == 2 else tensor.reshape(tensor.shape[0], -1)
    wide = None if tensor.dtype in _WIDE else torch.float32
    norms: Tensor = torch.linalg.vector_norm(flat, dim=1, dtype=wide)
    return norms.square_()


def widened(tensor: Tensor) -> Tensor:
    """The tensor in at least single precision."""
    return tensor if tensor.dtype in _WIDE else tensor.float()


def rounding_of(terms: int, dtype: torch.dtype) -> float:
    """How far a sum of products of so many terms may be off, as a part of what it is added up from.

    Twice what is seen with products of equal numbers, whose errors all have one sign.
    """
    return 2 * math.sqrt(terms) * torch.finfo(dtype).eps


def exact(tensor: Tensor) -> Tensor:
    """The tensor in double precision, where its device knows that.

    A squared norm that is added up from inner products loses as many digits as terms are larger
    than it: twice as many as the gradient itself loses, and more than single precision has.
    """
    return tensor.float() if tensor.device.type == "mps" else tensor.double()


def summed_products(products: Tensor, terms: int, sums: torch.dtype) -> Tensor:
    """Squared norms of sums, from [sums, parts, parts] of inner products between their parts.

    `terms` are what a product is made of, `sums` is the type in which the gradients are added up.
    """
    parts = products.diagonal(dim1=1, dim2=2).sqrt().sum(1)
    return guarded(products.flatten(1).sum(1), parts, terms + products.shape[1], sums)


def guarded(squares: Tensor, parts: Tensor, terms: int, sums: torch.dtype) -> Tensor:
    """Squared norms of sums from inner products, made safe where parts of a sum cancel.

    What is then left is rounding: a tiny result would say nothing of the true one. So what rounding
    may have hidden is added: a part of (Σ norms of the parts)², too little to be seen unless almost
    everything cancels. `parts` are these sums of norms, `terms` what a result is added up from,
    `sums` is the type in which the gradients will be added up.
    """
    hidden = rounding_of(terms, squares.dtype)
    squares = squares.add_(parts.square(), alpha=hidden).clamp_min_(0)
    wide = torch.promote_types(sums, torch.float32)
    return raised(squares, parts, terms, wide).to(wide)


def raised(squares: Tensor, sizes: Tensor, terms: int, sums: torch.dtype | None = None) -> Tensor:
    """Squared norms of gradients, raised where `terms` parts whose norms add up to `sizes` cancel.

    A sum over records meets the parts before they cancel, and loses what is below their last
    digit, of other records as well, the more the more parts there are. By these norms the parts of
    a record are scaled to at most 1/(100·eps) times the clip, and less where they are many, so that
    a small part of the clip is lost. The sum is of type `sums`, or else of that of the squares.
    """
    lost = max(_FEW_TERMS, terms / 4) * torch.finfo(sums or squares.dtype).eps
    return squares.add_(sizes.square(), alpha=lost**2)


def scaled(tensor: Tensor, factors: Tensor) -> Tensor:
    """Each record of the tensor times its factor."""
    if factors.dtype != tensor.dtype:
        factors = factors.to(tensor.dtype)
    return tensor * factors.view(-1, *[1] * (tensor.dim() - 1))


def zeroed(tensor: Tensor, records: Tensor) -> Tensor:
    """The tensor with the marked records replaced by zero."""
    return tensor.masked_fill(records.view(-1, *[1] * (tensor.dim() - 1)), 0)


class Dense(Contribution):
    """Gradients written out in full."""

    def __init__(self, gradients: Tensor) -> None:
        self._gradients = gradients
        self._squares: Tensor | None = None
        self._outer: Outer | None = None

    def squared_norms(self) -> Tensor:
        if self._squares is None:
            self._squares = squared_rows(self._gradients)
        return self._squares

    def outer(self) -> Outer | None:
        if self._outer is None:
            rows = native.rows_of(self._gradients)
            self._outer = None if rows is None else (None, rows)
        return self._outer

    def add_weighted(self, factors: Tensor, total: Tensor) -> None:
        self._put(factors, total, 1)

    def write_weighted(self, factors: Tensor, total: Tensor) -> None:
        self._put(factors, total, 0)

    def _put(self, factors: Tensor, total: Tensor, kept: int) -> None:
        flat = self._gradients
        if flat.dim() != 2:
            flat = flat.reshape(flat.shape[0], -1)
        if factors.dtype != flat.dtype:
            factors = factors.to(flat.dtype)
        if total.is_contiguous():
            total.view(-1).addmv_(flat.t(), factors, beta=kept)
        else:
            before = total if kept else total.zero_()
            before.add_(torch.mv(flat.t(), factors).view(total.shape))

    def per_record(self) -> Tensor:
        return self._gradients

    def silence(self, records: Tensor) -> None:
        self._gradients = zeroed(self._gradients, records)
        self._squares = self._outer = None


class Mergeable(Contribution):
    """A contribution that can absorb others without writing gradients out."""

    @abstractmethod
    def merged(self, others: Sequence[Contribution]) -> Contribution:
        """The sum of this and others of its own kind."""

    def tied(self, other: Contribution) -> Contribution | None:
        """The sum of this and one of another kind, or None when they do not fit together."""
        return None


def combine(contributions: Sequence[Contribution]) -> Contribution:
    """The contribution of a slot that was used more than once."""
    by_kind: dict[type[Contribution], list[Contribution]] = {}
    for contribution in contributions:
        by_kind.setdefault(type(contribution), []).append(contribution)
    kinds = [_combine_alike(alike) for alike in by_kind.values()]
    if len(kinds) == 1:
        return kinds[0]
    for one, other in (kinds, kinds[::-1]) if len(kinds) == 2 else ():
        tied = one.tied(other) if isinstance(one, Mergeable) else None
        if tied is not None:
            return tied
    return _written_out(kinds)


def _combine_alike(contributions: Sequence[Contribution]) -> Contribution:
    first, *others = contributions
    if not others:
        return first
    return first.merged(others) if isinstance(first, Mergeable) else _written_out(contributions)


def _written_out(contributions: Sequence[Contribution]) -> Contribution:
    first, *others = contributions
    gradients = first.per_record().clone()
    for other in others:
        gradients.add_(other.per_record())
    return Dense(gradients)
