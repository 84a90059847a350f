"""Per-record convolution weight gradients that have been written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.clipping.layers.conv_geometry import Problem

_PIECE = 16 << 20
"""Bytes of gradients in one tensor. The C library takes memory for larger ones from the system and
gives it back each time, and the system clears it again for every step."""

_IN_CACHE = 4 << 20
"""Bytes worked on at a time, so that what is written is still in the cache when it is read."""


@dataclass(frozen=True)
class WrittenOut:
    """Gradients as pieces [parts, records, elements]; parts in `shape`, permuted, make a kernel.

    The records of one piece follow those of the piece before. The order of a kernel's elements is
    left as the algorithm produced it; only sums are permuted. `squares` are the squared norms.
    """

    pieces: Sequence[Tensor]
    shape: tuple[int, ...]
    order: tuple[int, ...]
    squares: Tensor

    def weighted(self, factors: Tensor) -> Tensor:
        """Σ factor · gradient."""
        first = self.pieces[0]
        sums = first.new_zeros(first.shape[0], first.shape[2])
        each = factors.to(first.dtype).split([piece.shape[1] for piece in self.pieces])
        for piece, some in zip(self.pieces, each, strict=True):
            for total, part in zip(sums.unbind(), piece.unbind(), strict=True):
                total.addmv_(part.t(), some)
        return sums.view(self.shape).permute(self.order)

    def joined(self) -> Tensor:
        """All gradients as [parts, records, elements]."""
        return self.pieces[0] if len(self.pieces) == 1 else torch.cat(list(self.pieces), 1)

    def per_record(self) -> Tensor:
        """The gradients as [records, *kernel]."""
        by_record = self.joined().transpose(0, 1).reshape(-1, *self.shape)
        return by_record.permute(0, *(d + 1 for d in self.order))


def rooms(problem: Problem, parts: int = 1) -> list[tuple[Problem, Tensor]]:
    """Memory for the gradients of all records, piece by piece, with the records of each piece."""
    size = problem.x.element_size() * problem.weights
    elements = problem.weights // parts
    return [
        (some, problem.x.new_empty(parts, some.records, elements))
        for _, some in problem.blocks(size, _PIECE)
    ]


def written_in_cache(
    problem: Problem,
    bytes_per_record: int,
    write: Callable[[Problem, Tensor], object],
    shape: tuple[int, ...],
    order: tuple[int, ...],
    parts: int = 1,
) -> WrittenOut:
    """Gradients written out a few records at a time, and measured before they leave the cache.

    `write` writes those of some records to [parts, records, elements], and needs so many bytes
    for each beside them.
    """
    size = bytes_per_record + problem.x.element_size() * problem.weights
    places, squares = rooms(problem, parts), []
    for some, room in places:
        for block, few in some.blocks(size, _IN_CACHE):
            written = room[:, block]
            write(few, written)
            squares.append(squared_norms(written))
    return WrittenOut([room for _, room in places], shape, order, torch.cat(squares))


def squared_norms(gradients: Tensor) -> Tensor:
    """‖gradient‖² of each record, from [parts, records, elements]."""
    wide = torch.promote_types(gradients.dtype, torch.float32)
    norms: Tensor = torch.linalg.vector_norm(gradients, dim=2, dtype=wide)
    return norms.square_().sum(0)
