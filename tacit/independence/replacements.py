"""Public rows that take the place of all records of a batch but one.

Mixing that ordinary records do not show may show with rows that are blank, alike, of any padding
length, or extreme: each is tried in turn. The rows are functions of shapes, of the size of the
vocabulary, of the number of the check, and (for labels) of the record that stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tacit.clipping.contract import Batch

_LADDER = 997
"""Magnitudes from 1e-6 to 1e30; a prime, so that columns and rows meet all of them."""


@dataclass(frozen=True)
class Vocabulary:
    """Which token ids a model takes, and which of them is padding."""

    size: int
    padding: int

    @classmethod
    def of(cls, model: nn.Module) -> Vocabulary:
        """Ids that every embedding of the model knows; 0 and 1 where there is none."""
        tables = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        padding = next((t.padding_idx for t in tables if t.padding_idx is not None), 0)
        return cls(min((t.num_embeddings for t in tables), default=2), padding)


@dataclass(frozen=True)
class Replacement:
    """One kind of public rows."""

    name: str
    floats: Callable[[tuple[int, ...], int], Tensor]
    """Values from a shape and the number of the check."""
    tokens: Callable[[tuple[int, ...], int, Vocabulary], Tensor]
    finite: bool = True
    blank_labels: bool = False

    def around(self, batch: Batch, kept: slice, turn: int, vocabulary: Vocabulary) -> Batch:
        """The batch with every row outside `kept` replaced.

        Args:
            batch: Features, whatever else belongs to a record, and labels last.
            kept: Rows of the record that stays as it is, where it is.
            turn: Number of the check; shifts which row gets which value.
            vocabulary: Valid values of the first part where it holds whole numbers. Those of
                further parts are taken for masks.
        """
        replaced = self.everywhere(batch, turn, vocabulary)
        if not self.blank_labels:
            replaced[-1][:] = batch[-1][kept][:1]
        for rows, real in zip(replaced, batch, strict=True):
            rows[kept] = real[kept]
        return replaced

    def everywhere(self, batch: Batch, turn: int, vocabulary: Vocabulary) -> Batch:
        """Public rows in the shape of the batch, their labels blank."""
        *features, labels = batch
        parts = []
        for index, part in enumerate(features):
            shape = tuple(part.shape)
            if part.is_floating_point():
                rows = self.floats(shape, turn)
            else:
                rows = self.tokens(shape, turn, Vocabulary(2, 0) if index else vocabulary)
            parts.append(rows.to(part).clone())
        return (*parts, torch.zeros_like(labels))


def _ladder(indices: Tensor) -> Tensor:
    steps = indices % _LADDER
    magnitudes = torch.pow(10.0, -6 + 36 * steps.double() / (_LADDER - 1)).float()
    return torch.where(steps % 2 == 0, magnitudes, -magnitudes)


def _per_row(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    return values.view(-1, *[1] * (len(shape) - 1)).expand(shape)


def _blank(shape: tuple[int, ...], turn: int) -> Tensor:
    return torch.zeros(shape)


def _alike(shape: tuple[int, ...], turn: int) -> Tensor:
    row = torch.sin(torch.arange(1 + turn, 1 + turn + math.prod(shape[1:])).float())
    return row.view(1, *shape[1:]).expand(shape)


def _normal(shape: tuple[int, ...], turn: int) -> Tensor:
    generator = torch.Generator().manual_seed(1 + abs(turn))
    return torch.randn(shape, generator=generator)


def _large_elements(shape: tuple[int, ...], turn: int) -> Tensor:
    return _ladder(torch.arange(math.prod(shape)).view(shape) + turn)


def _large_rows(shape: tuple[int, ...], turn: int) -> Tensor:
    return _per_row(_ladder(89 * torch.arange(shape[0]) + turn), shape)


def _not_finite(shape: tuple[int, ...], turn: int) -> Tensor:
    kinds = torch.tensor([math.inf, -math.inf, math.nan])
    return _per_row(kinds[(torch.arange(shape[0]) + turn) % 3], shape)


def _words(shape: tuple[int, ...], turn: int, vocabulary: Vocabulary) -> Tensor:
    """Every id in turn but padding."""
    others = max(1, vocabulary.size - 1)
    numbers = (torch.arange(math.prod(shape)).view(shape) + turn) % others
    return numbers + (numbers >= vocabulary.padding) if vocabulary.size > 1 else numbers


def _all_padding(shape: tuple[int, ...], turn: int, vocabulary: Vocabulary) -> Tensor:
    return torch.full(shape, vocabulary.padding)


def _full(shape: tuple[int, ...], turn: int, vocabulary: Vocabulary) -> Tensor:
    return _words((1, *shape[1:]), turn, vocabulary).expand(shape)


def _padded(shape: tuple[int, ...], turn: int, vocabulary: Vocabulary, lengths: Tensor) -> Tensor:
    """Rows of so many words, the rest padding: at the end, or at the start in odd turns."""
    words = _words(shape, turn, vocabulary)
    if len(shape) < 2:
        return words
    place = torch.arange(shape[1])
    place = place.flip(0) if turn % 2 else place
    present = (place < lengths[:, None]).view(*shape[:2], *[1] * (len(shape) - 2))
    return torch.where(present, words, vocabulary.padding)


def _every_length(shape: tuple[int, ...], turn: int, vocabulary: Vocabulary) -> Tensor:
    longest = shape[1] if len(shape) > 1 else 0
    return _padded(shape, turn, vocabulary, (torch.arange(shape[0]) + turn) % (longest + 1))


def _one_length(shape: tuple[int, ...], turn: int, vocabulary: Vocabulary) -> Tensor:
    longest = shape[1] if len(shape) > 1 else 0
    return _padded(shape, turn, vocabulary, torch.full((shape[0],), (turn + 1) % (longest + 1)))


MADE_UP = Replacement("made-up", _normal, _words)
"""Rows like ordinary records, to show to a model before any real one."""
LARGE = _LADDER // 2
"""A number of a check in which the first rows of `EXTREME` are large."""
EXTREME = Replacement("extreme values or every padding length", _large_elements, _every_length)
REPLACEMENTS = (
    Replacement("blank", _blank, _all_padding, blank_labels=True),
    Replacement("repeated", _alike, _full),
    EXTREME,
    Replacement("extreme rows or one padding length", _large_rows, _one_length),
    Replacement("non-finite values or every token", _not_finite, _words, finite=False),
)
