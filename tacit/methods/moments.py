"""Statistics that a released BatchNorm normalises by: from public records, noised, or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.clipping.contract import Batch, ClippedSum, Layout
from tacit.data.batches import Gatherer, Records
from tacit.models import batch_norm
from tacit.noise.gaussian import GaussianNoise
from tacit.weight_writes import weights_unwritten

_ROWS = 512
_ENOUGH = 1024


@dataclass(frozen=True)
class Statistics:
    """The buffers of a released model's BatchNorm layers.

    Guarantee: they are functions of public records and released weights, or of moments that
    `release` gave out: for each layer one vector of 2c means over all records, every record's share
    clipped to norm clip·√(2c), with the Gaussian mechanism's noise.
    """

    kind: Literal["none", "public", "noisy"]
    model: nn.Module
    records: Records
    public: Records | None
    noise: GaussianNoise
    clip: float
    memory: dict[str, Tensor]

    @contextmanager
    def filled(self) -> Iterator[None]:
        """The model with buffers as they would be released now; it trains without any."""
        try:
            if self.kind == "public" and self.public is not None:
                batch_norm.fill_from_public(self.model, lambda: _some_of(self.public))
            for name, layer in batch_norm.layers(self.model).items():
                if f"moments.{name}" in self.memory:
                    batch_norm.fill(layer, *self.memory[f"moments.{name}"].chunk(2))
            yield
        finally:
            batch_norm.seal(self.model)

    def everyone(self) -> Iterable[Batch]:
        """All training records, as often as one asks for them."""
        return _Chosen(self.records, np.arange(len(self.records)))

    def release(self, step: int, batches: Iterable[Batch]) -> None:
        """Noised moments of one layer after the other, as a model at inference reaches them.

        Layers get noise of their own also where their sums are equal: it is addressed by numbers
        from `step` on, which no later step uses.
        """
        self.model.eval()
        like = tuple(torch.zeros_like(part[:2]) for part in next(iter(batches)))
        with weights_unwritten(list(self.model.parameters())), torch.no_grad():
            for i, (name, layer) in enumerate(batch_norm.in_order_of_use(self.model, like).items()):
                moments = self._noised(step + i, layer, batches)
                self.memory[f"moments.{name}"] = moments
                batch_norm.fill(layer, *moments.chunk(2))
        batch_norm.seal(self.model)

    def _noised(self, step: int, layer: nn.Module, batches: Iterable[Batch]) -> Tensor:
        total: Tensor | None = None
        for batch in batches:
            rows = batch_norm.record_moments(self.model, layer, batch)
            bound = self.clip * rows.shape[1] ** 0.5
            norms = rows.norm(dim=1, keepdim=True)
            rows = torch.where(torch.isfinite(norms), rows, 0.0)
            kept = rows * (bound / norms.clamp_min(1e-30)).clamp_max(1.0).nan_to_num(0.0)
            total = kept.sum(0) if total is None else total + kept.sum(0)
        assert total is not None
        layout = Layout(("moments",), (total.shape,), (0,))
        clipped = ClippedSum(total, layout, (self.clip * len(total) ** 0.5,), (1.0,))
        return self.noise.privatise(clipped, step, len(self.records)).vector


def _some_of(records: Records | None) -> Iterable[Batch]:
    """As many public records as tell a layer's moments, at even distances.

    A deep network passes them once for each layer.
    """
    assert records is not None
    step = -(-len(records) // _ENOUGH)
    return _Chosen(records, np.arange(0, len(records), step))


@dataclass(frozen=True)
class _Chosen:
    records: Records
    places: NDArray[np.int64]

    def __iter__(self) -> Iterator[Batch]:
        gatherer = Gatherer(self.records, _ROWS, 1, ())
        return gatherer.micro_batches(self.places, 0)
