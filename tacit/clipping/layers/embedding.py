"""Embeddings: the gradient of a record has as many rows as the record has different tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit import native
from tacit.clipping.layers.contributions import (
    Contribution,
    Mergeable,
    exact,
    guarded,
    raised,
    scaled,
    squared_rows,
    widened,
    zeroed,
)
from tacit.clipping.layers.operation import (
    Gradients,
    Match,
    Operation,
    Placement,
    ReadMatch,
    Saved,
)
from tacit.clipping.layers.outer_products import OuterProducts
from tacit.clipping.layers.slots import Lookup, Met, Slot, Slots
from tacit.errors import ModelError

_TABLE = 2 << 20
"""Bytes of slots in which repeated tokens are looked for at once."""
_BLOCK = 4 << 20
"""Bytes of gradients that are taken at once: many small blocks take longer for calls of torch."""


def embedding(
    parameters: Slots,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Match | None:
    """Rule for `torch.nn.functional.embedding`."""
    refuse_data_dependent_options(max_norm, scale_grad_by_freq, sparse)
    slots = parameters.resolve(weight)
    if slots is None or slots[0] is None:
        return None
    if padding_idx is None:
        padding_idx = -1
    elif padding_idx < 0:
        padding_idx += weight.shape[0]
    return input, _Embedding(weight.detach(), padding_idx, slots[0])


def read_embedding(parameters: Slots, node: Any, met: Sequence[Met | None]) -> ReadMatch | None:
    """Reader for rows of a table."""
    (table,) = met
    if table is None or table.transposed:
        return None
    refuse_data_dependent_options(None, node._saved_scale_grad_by_freq, node._saved_sparse)
    weight, slot = parameters.parameters[table.name], parameters.whole(table.name)
    padding = node._saved_padding_idx
    if padding >= weight.shape[0]:  # -1, read as an unsigned number
        padding = -1
    return "_saved_indices", _Embedding(weight, padding, slot)


def embedding_of_one_record(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The same inside a module that runs record by record: `torch.func` would forget there that a
    padding token gets no gradient."""
    refuse_data_dependent_options(max_norm, scale_grad_by_freq, sparse)
    rows = F.embedding(input, weight)
    if padding_idx is None:
        return rows
    padding = padding_idx % weight.shape[0]
    return torch.where((input == padding).unsqueeze(-1), rows.detach(), rows)


def refuse_data_dependent_options(
    max_norm: float | None, scale_grad_by_freq: bool, sparse: bool
) -> None:
    """Refuse options with which an embedding changes outside the clipped gradient."""
    if max_norm is not None:
        raise ModelError(
            f"an embedding has max_norm={max_norm}: its forward pass rewrites the weights of the"
            " tokens it sees, without noise; use max_norm=None"
        )
    if scale_grad_by_freq:
        raise ModelError(
            "an embedding has scale_grad_by_freq=True: gradients then depend on other records;"
            " use scale_grad_by_freq=False"
        )
    if sparse:
        raise ModelError(
            "an embedding has sparse=True: noise is dense, and a sparse update would reveal which"
            " tokens occurred; use sparse=False"
        )


class _Embedding(Operation):
    def __init__(self, weight: Tensor, padding: int, slot: Slot) -> None:
        self._weight, self._padding, self._slot = weight, padding, slot
        self.slots = [slot]
        self.kept = 1

    def leading(self, x: Tensor) -> Sequence[int]:
        return x.shape

    def lookup(self, x: Tensor, result: Tensor) -> Lookup | None:
        return Lookup(self._slot, x, result, result._version) if self._padding < 0 else None

    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        return F.embedding(x, self._weight), ()

    def back(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, at: Placement | None
    ) -> tuple[Tensor | None, Gradients]:
        if at is None:
            return None, []
        tokens, gradients = at.arrange(x, 0), at.arrange(g, 1)
        rows = TableRows(tokens, gradients, self._weight.shape[0], self._padding)
        return None, [(self._slot, rows)]


class TableRows(Mergeable):
    """Record r's gradient adds gradients[r, p] to row tokens[r, p] of the table.

    A row `padding` receives nothing, whatever is given for it.
    """

    def __init__(self, tokens: Tensor, gradients: Tensor, size: int, padding: int = -1) -> None:
        self.tokens = tokens
        self._given, self._padding = gradients, padding
        self._size = size

    @property
    def gradients(self) -> Tensor:
        """What is added, with zeros for the row that receives nothing."""
        if self._padding >= 0:
            unwanted = (self.tokens == self._padding).unsqueeze(2)
            self._given, self._padding = self._given.masked_fill(unwanted, 0), -1
        return self._given

    def _kernels(self) -> native.Library | None:
        """The compiled kernels, where they know this kind of gradient."""
        given = self._given
        plain = given.dtype == torch.float32 and given.device.type == "cpu" and not given.is_neg()
        return native.active() if plain and given.stride(2) == 1 else None

    def squared_norms(self) -> Tensor:
        kernels = self._kernels()
        if kernels is None:
            return torch.cat([self._measured(part) for part in row_blocks(self._given)])
        squares = kernels.table_norms(self.tokens, self._given, self._size, self._padding)
        if self.tokens.shape[1] == 1:
            return squares
        return self._raised(squares, torch.linalg.vector_norm(self._given, dim=(1, 2)))

    def _measured(self, part: slice) -> Tensor:
        """Squared norms of some records.

        Rows of a token that repeats within a record are added up in the place of their leader.
        """
        tokens, gradients = self.tokens[part], self._given[part]
        unwanted = tokens == self._padding
        squares = torch.linalg.vector_norm(widened(gradients), dim=2).square_()
        squares.masked_fill_(unwanted, 0)
        whole = squares.sum(1).sqrt_()
        leaders = same_token_leaders(tokens, self._size)
        starts = torch.arange(0, tokens.numel(), tokens.shape[1], device=tokens.device)
        leaders = (leaders + starts.unsqueeze(1)).flatten()
        numbers = torch.arange(tokens.numel(), device=tokens.device)
        repeated = (leaders != numbers).masked_fill_(unwanted.flatten(), False).nonzero().squeeze(1)
        if len(repeated):
            leading = leaders.index_select(0, repeated)
            first = torch.zeros_like(leaders, dtype=torch.bool).index_fill_(0, leading, True)
            first = first.nonzero().squeeze(1)
            group = numbers.index_copy_(0, first, numbers[: len(first)].clone())
            together = _rows_at(first, gradients)
            together.index_add_(0, group.index_select(0, leading), _rows_at(repeated, gradients))
            places = squares.view(-1).index_fill_(0, repeated, 0)
            places.index_copy_(0, first, squared_rows(together))
        return self._raised(squares.sum(1), whole)

    def _raised(self, squares: Tensor, whole: Tensor) -> Tensor:
        """Squared norms, raised where rows cancel; `whole` are the norms of all rows together."""
        positions = self.tokens.shape[1]
        return raised(squares, whole.mul_(math.sqrt(positions)), positions)

    def add_weighted(self, factors: Tensor, total: Tensor) -> None:
        kernels = self._kernels()
        if kernels is not None and total.is_contiguous():
            kernels.table_sum(self.tokens, self._given, self._padding, factors, total)
            return
        spared = total[self._padding].clone() if self._padding >= 0 else None
        for part in row_blocks(self._given):
            weighted = scaled(self._given[part], factors[part])
            total.index_add_(0, self.tokens[part].flatten(), weighted.flatten(0, 1))
        if spared is not None:
            total[self._padding] = spared

    def per_record(self) -> Tensor:
        records, positions, width = self.gradients.shape
        table = self.gradients.new_zeros(records, self._size, width)
        index = self.tokens.unsqueeze(2).expand(records, positions, width)
        return table.scatter_add_(1, index, self.gradients)

    def silence(self, records: Tensor) -> None:
        self._given = zeroed(self.gradients, records)

    def merged(self, others: Sequence[Contribution]) -> Contribution:
        alike = [self, *(other for other in others if isinstance(other, TableRows))]
        tokens = torch.cat([one.tokens for one in alike], 1)
        return TableRows(tokens, torch.cat([one.gradients for one in alike], 1), self._size)

    def exact(self) -> TableRows:
        """The same in double precision."""
        return TableRows(self.tokens, exact(self.gradients), self._size)

    def tied(self, other: Contribution) -> Contribution | None:
        return _TiedTable(self, other) if isinstance(other, OuterProducts) else None


def _rows_at(numbers: Tensor, gradients: Tensor) -> Tensor:
    """Some rows of [records, positions, width], numbered as if they were contiguous."""
    positions = gradients.shape[1]
    return gradients[numbers // positions, numbers % positions]


def same_token_leaders(tokens: Tensor, size: int) -> Tensor:
    """For each position, one position of the same record that holds the same token.

    A slot table of the vocabulary's size per record need not be cleared: only slots that were
    just written are read.
    """
    records, positions = tokens.shape
    step = max(1, _TABLE // (4 * size))
    numbers = torch.arange(positions, dtype=torch.int32, device=tokens.device)
    table = torch.empty(min(step, records), size, dtype=torch.int32, device=tokens.device)
    found = []
    for block in tokens.split(step):
        slots = table[: len(block)]
        slots.scatter_(1, block, numbers.expand(block.shape))
        found.append(slots.gather(1, block))
    return torch.cat(found)


def row_blocks(gradients: Tensor) -> Iterator[slice]:
    """Ranges of records whose gradients stay in cache."""
    records = gradients.shape[0]
    step = max(1, _BLOCK // max(1, gradients.element_size() * gradients[0].numel()))
    return (slice(start, start + step) for start in range(0, records, step))


class _TiedTable(Contribution):
    """A table that is looked up and also serves as the weight of a linear layer."""

    def __init__(self, rows: TableRows, products: OuterProducts) -> None:
        self._rows, self._products = rows, products

    def squared_norms(self) -> Tensor:
        rows, products = self._rows.exact(), self._products.exact()
        records, positions = rows.tokens.shape
        index = rows.tokens.unsqueeze(1).expand(records, products.outputs.shape[1], positions)
        overlaps = torch.bmm(products.inputs, rows.gradients.mT)
        cross = overlaps.mul_(products.outputs.gather(2, index)).sum((1, 2))
        looked_up, inputs, outputs = (
            torch.linalg.vector_norm(t, dim=2)
            for t in (rows.gradients, products.inputs, products.outputs)
        )
        parts = looked_up.sum(1).add_(inputs.mul_(outputs).sum(1))
        terms = products.inputs.shape[2] + positions + products.inputs.shape[1]
        squares = cross.mul_(2).add_(rows.squared_norms()).add_(products.squared_norms())
        return guarded(squares, parts, terms, self._rows.gradients.dtype)

    def add_weighted(self, factors: Tensor, total: Tensor) -> None:
        self._rows.add_weighted(factors, total)
        self._products.add_weighted(factors, total)

    def per_record(self) -> Tensor:
        return self._rows.per_record() + self._products.per_record()

    def silence(self, records: Tensor) -> None:
        self._rows.silence(records)
        self._products.silence(records)
