"""Bags of embeddings: every token of a bag receives the same gradient, up to a weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.layers.contributions import Contribution, scaled, squared_rows, zeroed
from tacit.clipping.layers.embedding import (
    TableRows,
    refuse_data_dependent_options,
    row_blocks,
    same_token_leaders,
)
from tacit.clipping.layers.operation import Gradients, Match, Operation, Placement, Saved
from tacit.clipping.layers.slots import Slot, Slots


def embedding_bag(
    parameters: Slots,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Match | None:
    """Rule for `torch.nn.functional.embedding_bag` over bags of equal length."""
    refuse_data_dependent_options(max_norm, scale_grad_by_freq, sparse)
    slots = parameters.resolve(weight)
    plain = input.dim() == 2 and mode in ("mean", "sum") and per_sample_weights is None
    if slots is None or slots[0] is None or not plain:
        return None
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    return input, _Bag(weight.detach(), mode, padding_idx, slots[0])


class _Bag(Operation):
    kept = 1

    def __init__(self, weight: Tensor, mode: str, padding: int | None, slot: Slot) -> None:
        self._weight, self._mode, self._padding, self._slot = weight, mode, padding, slot
        self.slots = [slot]

    def leading(self, x: Tensor) -> Sequence[int]:
        return x.shape[:1]

    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        output = F.embedding_bag(x, self._weight, mode=self._mode, padding_idx=self._padding)
        return output, ()

    def back(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, at: Placement | None
    ) -> tuple[Tensor | None, Gradients]:
        if at is None:
            return None, []
        present = torch.ones_like(x) if self._padding is None else x != self._padding
        weights = present.to(g.dtype)
        if self._mode == "mean":
            weights = weights / weights.sum(1, keepdim=True).clamp_min(1)
        tokens, weights, bags = at.arrange(x, 1), at.arrange(weights, 1), at.arrange(g, 1)
        size = self._weight.shape[0]
        if tokens.shape[1] == 1:
            rows: Contribution = BagRows(tokens[:, 0], weights[:, 0], bags[:, 0], size)
        else:
            spread = (weights.unsqueeze(3) * bags.unsqueeze(2)).flatten(1, 2)
            rows = TableRows(tokens.flatten(1), spread, size)
        return None, [(self._slot, rows)]


class BagRows(Contribution):
    """Record r's gradient adds weights[r, p] · bags[r] to row tokens[r, p] of the table."""

    def __init__(self, tokens: Tensor, weights: Tensor, bags: Tensor, size: int) -> None:
        self._tokens, self._weights, self._bags = tokens, weights, bags
        self._size = size

    def squared_norms(self) -> Tensor:
        leaders = same_token_leaders(self._tokens, self._size).long()
        together = torch.zeros_like(self._weights).scatter_add_(1, leaders, self._weights)
        return squared_rows(self._bags) * squared_rows(together)

    def add_weighted(self, factors: Tensor, total: Tensor) -> None:
        shape = (*self._tokens.shape, self._bags.shape[1])
        for part in row_blocks(self._bags.unsqueeze(1).expand(shape)):
            weights = self._weights[part].unsqueeze(2)
            weighted = weights * scaled(self._bags[part], factors[part]).unsqueeze(1)
            total.index_add_(0, self._tokens[part].flatten(), weighted.flatten(0, 1))

    def per_record(self) -> Tensor:
        spread = self._weights.unsqueeze(2) * self._bags.unsqueeze(1)
        return TableRows(self._tokens, spread, self._size).per_record()

    def silence(self, records: Tensor) -> None:
        self._bags = zeroed(self._bags, records)
