"""The test of a candidate: does the loss on other records fall, seen through noise?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tacit.clipping.contract import Batch, ClippedSum, Layout, LossFunction, check_losses
from tacit.clipping.exact.grid import Grid
from tacit.data.batches import Gatherer
from tacit.data.sampling import PoissonSampler
from tacit.noise.gaussian import GaussianNoise
from tacit.noise.source import RandomSource
from tacit.privacy.selective import LossTest

_LAYOUT = Layout(("change of loss",), (torch.Size([1]),), (0,))


class NoisyLossChange:
    """Changes of loss on a Poisson sample of its own, clipped and noised.

    Guarantee: what `noised` returns is the Gaussian mechanism with the test's noise multiplier on
    a value that one record moves by at most 2·clip ("clipped-mean") or clip ("clipped-sum"), and
    that lies within `half_range` standard deviations of zero. Nothing else leaves it.
    """

    def __init__(
        self,
        model: nn.Module,
        sampler: PoissonSampler,
        gatherer: Gatherer,
        source: RandomSource,
        clip: float,
    ) -> None:
        self._model = model
        self._sampler = sampler
        self._gatherer = gatherer
        self._source = source
        self._clip = clip

    @property
    def probability(self) -> float:
        """The rate at which records are sampled for a test."""
        return self._sampler.probability

    def draw(self, step: int) -> tuple[Batch, ...]:
        """The records of a test, as they are: no augmentation."""
        return tuple(self._gatherer.micro_batches(self._sampler.draw(step), 0))

    def losses(self, loss: LossFunction, batches: Sequence[Batch]) -> Tensor:
        """The loss of each record with the weights as they are; private."""
        self._model.eval()
        with torch.no_grad():
            found = [check_losses(loss(self._model, b), len(b[0])) for b in batches]
        self._model.train()
        return (
            torch.cat([losses.double() for losses in found]) if found else torch.zeros(0).double()
        )

    def noised(self, step: int, before: Tensor, after: Tensor, test: LossTest) -> float:
        """The change from `before` to `after`, in standard deviations of its noise.

        A change that is not finite counts as the worst.
        """
        moved = self._clip if test.statistic == "clipped-sum" else 2 * self._clip
        scale = test.noise * moved
        change = after - before
        if test.statistic == "clipped-sum":
            half = test.half_range * scale
            value = self._exact_sum(self._clipped(change, self._clip)).clamp(-half, half)
        else:
            value = self._clipped(change.sum() / max(len(change), 1), self._clip)
        clipped = ClippedSum(value.view(1), _LAYOUT, (moved,), (1.0,))
        noise = GaussianNoise(self._source, test.noise, purpose="validation noise")
        return float(noise.privatise(clipped, step, 1.0).vector) / scale

    def _exact_sum(self, clipped: Tensor) -> Tensor:
        """The sum of clipped changes, each truncated to a public grid, without rounding."""
        unit = Grid.of((self._clip,), self._sampler.records).unit(0)
        return (clipped / unit).trunc_().sum() * unit

    @staticmethod
    def _clipped(change: Tensor, bound: float) -> Tensor:
        return change.nan_to_num(bound, bound, -bound).clamp(-bound, bound)
