"""One central release of sums over the records of each class, and a head computed from it.

Labels are public, so a record stays in its class and the number of records in each class is known.
Proof: docs/proofs/sanitization.md, S3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from dp_accounting import DpEvent
from torch import Tensor

from tacit.clipping.contract import Batch, LossFunction
from tacit.data.batches import Gatherer
from tacit.methods.base import Method, Promise
from tacit.methods.heads import linear_head, nearest_means
from tacit.models.sanitization import Split
from tacit.noise.gaussian import noised
from tacit.noise.source import RandomSource
from tacit.privacy.sanitized import SanitizedSchedule

CENTRE_SHARE = 0.05
"""Share of the privacy cost (of 1/σ²) that goes into the mean of all vectors."""
SUMS_SHARE = 0.5
"""Share of the rest that goes into class sums; what is left goes into second moments."""
_RIDGE = 0.8
"""Ridge in units of the largest eigenvalue that the noise on the second moments has."""


class ClassSums(Method):
    """Releases noised class sums, and for a ridge head second moments, in its only step.

    Guarantee: with vectors in a ball of radius R, a change of one record's features moves the
    sum of its class by at most 2R and the matrix of second moments by at most √2·R². Part i of
    the release gets noise σ·Δ_i/√share_i; shares add up to one, so together the parts are one
    Gaussian release with multiplier σ under replace-features.
    """

    def __init__(
        self,
        promise: Promise,
        schedule: SanitizedSchedule,
        split: Split,
        gatherer: Gatherer,
        source: RandomSource,
        *,
        ridge: bool,
    ) -> None:
        self.promise = promise
        self._schedule, self._split, self._gatherer = schedule, split, gatherer
        self._source, self._ridge, self._head = source, ridge, linear_head(split)
        split.layer.recentre(torch.zeros(self._head.in_features))

    def charge(self, step: int) -> DpEvent:
        return self._schedule.charge(step)

    def draw(self, step: int) -> Iterable[Batch]:
        """Every record, once."""
        return self._gatherer.micro_batches(np.arange(len(self._gatherer)), 0)

    def step(self, step: int, loss: LossFunction, batches: Iterable[Batch]) -> None:
        """Release the sums and set the head; the loss plays no part."""
        vectors, labels = self._activations(batches)
        one_hot = F.one_hot(labels.long(), self._head.out_features).double()
        weights, bias = (self._fitted if self._ridge else self._nearest)(vectors, one_hot)
        radius = float(self._split.layer.threshold)
        with torch.no_grad():
            self._head.weight.copy_(weights.T / radius)
            self._head.bias.copy_(bias)

    def _activations(self, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        for part in self._split.encoder:
            part.eval()
        with torch.no_grad():
            pairs = [(self._split.activations(batch[0]), batch[-1]) for batch in batches]
        return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])

    def _unit(self, vectors: Tensor) -> Tensor:
        """Vectors as the layer bounds them, in units of the ball's radius."""
        layer = self._split.layer
        return (layer.bounded(vectors) / layer.threshold).double()

    def _noised(self, total: Tensor, moves: float, share: float, purpose: str) -> Tensor:
        deviation = self._schedule.noise * moves / math.sqrt(share)
        return noised(total, deviation, purpose, self._source)

    def _nearest(self, vectors: Tensor, one_hot: Tensor) -> tuple[Tensor, Tensor]:
        """The class with the nearest mean, by its inner product with the vector."""
        sums = self._noised(self._unit(vectors).T @ one_hot, 2.0, 1.0, "class sums")
        counts = one_hot.sum(0)
        return nearest_means(sums, counts, torch.full_like(counts, (2 * self._schedule.noise) ** 2))

    def _fitted(self, vectors: Tensor, one_hot: Tensor) -> tuple[Tensor, Tensor]:
        """Ridge regression on the labels, from noised moments of vectors centred beforehand."""
        layer, records = self._split.layer, len(vectors)
        total = self._noised(self._unit(vectors).sum(0), 2.0, CENTRE_SHARE, "centre")
        layer.recentre((total / records).float() * layer.threshold)
        unit, rest = self._unit(vectors), 1 - CENTRE_SHARE
        sums = self._noised(unit.T @ one_hot, 2.0, rest * SUMS_SHARE, "class sums")
        share = rest * (1 - SUMS_SHARE)
        moments = self._symmetric(unit.T @ unit, share)
        frequency = one_hot.sum(0) / records
        mean = sums.sum(1) / records
        values, axes = torch.linalg.eigh(moments - records * torch.outer(mean, mean))
        edge = self._schedule.noise * math.sqrt(2 / share) * math.sqrt(2 * len(mean))
        between = sums - torch.outer(sums.sum(1), frequency)
        damped = values.clamp_min(0) + _RIDGE * edge
        weights = axes @ ((axes.T @ between) / damped[:, None])
        return weights, frequency - weights.T @ mean

    def _symmetric(self, moments: Tensor, share: float) -> Tensor:
        """Noise on the upper triangle, its entries off the diagonal scaled by √2: so they form a
        vector whose length is the matrix's own."""
        rows, columns = torch.triu_indices(*moments.shape).unbind()
        scale = torch.where(rows == columns, 1.0, math.sqrt(2)).double()
        entries = self._noised(
            moments[rows, columns] * scale, math.sqrt(2), share, "second moments"
        )
        found = torch.zeros_like(moments)
        found[rows, columns] = entries / scale
        return found + found.T - torch.diag(found.diagonal())
