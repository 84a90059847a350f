"""Bags of tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tacit.clipping.exact.stages.stage import NotRowwiseError, Stage
from tacit.clipping.exact.uses import BagUse, Use
from tacit.models.networks import WordWeights, words_of


class BagStage(Stage):
    """Rows of a table added up for each record, and divided by a function of its tokens alone."""

    trained = True

    def __init__(
        self, name: str, bag: nn.EmbeddingBag, table: str, words: WordWeights | None
    ) -> None:
        self._name = name
        self._bag, self._table, self._words = bag, table, words
        self._kept: tuple[Tensor, Tensor | None] | None = None

    def run(self, x: Tensor) -> Tensor:
        bag = self._bag
        if x.dim() != 2 or x.dtype != torch.int64:
            raise NotRowwiseError(self._name, "its input is not one row of int64 tokens per record")
        with torch.no_grad():
            total: Tensor = torch.nn.functional.embedding_bag(
                x, bag.weight, mode="sum", padding_idx=bag.padding_idx
            )
            if self._words is not None:
                divisor = words_of(x).sqrt()
            elif bag.mode == "mean":
                counted = torch.ones_like(x) if bag.padding_idx is None else x != bag.padding_idx
                divisor = counted.sum(1, keepdim=True).clamp_min(1).float()
            else:
                divisor = None
        self._kept = x, divisor
        return total if divisor is None else total / divisor

    def back(self, g: Tensor, input_needed: bool) -> tuple[Tensor | None, list[Use]]:
        assert self._kept is not None and not input_needed
        (tokens, divisor), self._kept = self._kept, None
        outputs = g if divisor is None else g / divisor
        bag = self._bag
        return None, [BagUse(self._table, tokens, bag.padding_idx, bag.num_embeddings, outputs)]
