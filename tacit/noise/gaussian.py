"""Independent Gaussian noise, and the only type of gradient that an optimizer accepts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from tacit.clipping.contract import ClippedSum, Layout
from tacit.errors import ArgumentError, NoProofError
from tacit.noise.source import RandomSource
from tacit.privacy.relations import Relation


@dataclass(frozen=True)
class PrivateGradient:
    """A gradient that may leave the step: noised, and divided by a public constant.

    `protected` is False only for the non-private baseline, whose ledger says the same.
    """

    vector: Tensor
    layout: Layout
    protected: bool = True
    scales: tuple[float, ...] = ()
    """Standard deviation of the noise on each parameter, where steps have noise of their own."""


class GaussianNoise:
    """Adds N(0, (σ·Δ)²) to a clipped sum, Δ its sensitivity under `relation`.

    Guarantee: the result is the Gaussian mechanism with noise multiplier σ for neighbours under
    `relation`. Group h gets σ·Δ_h/√share_h; shares add up to one, so the groups together cost
    what one release with multiplier σ costs.
    """

    def __init__(
        self,
        source: RandomSource,
        multiplier: float,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
        purpose: str = "gradient noise",
    ) -> None:
        if not (multiplier > 0 and math.isfinite(multiplier)):
            raise ArgumentError(f"noise is {multiplier}; it must be a positive finite number")
        self._source = source
        self._multiplier = multiplier
        self._relation = relation
        self._purpose = purpose

    def privatise(self, clipped: ClippedSum, step: int, denominator: float) -> PrivateGradient:
        """Noise of this step's own, then division by a public constant (never by a count).

        The noise is addressed by the step and by the sum itself: whatever goes wrong around a
        step, two different sums never share their noise, and the same sum always gets the same. A
        step repeated after a crash with another sum raises `ReplayError` and gets none.
        The result lies in the sum's memory: the sum itself is gone, and nothing can leak it later.
        """
        if not isinstance(clipped, ClippedSum):
            raise NoProofError(
                f"noise was asked for a {type(clipped).__name__}; only a ClippedSum knows its"
                " sensitivity"
            )
        layout, total = clipped.layout, clipped.spend()
        each = clipped.noise_scales(self._multiplier, self._relation)
        purpose = self._source.address(f"{self._purpose} {step}", total, each)
        one = len(set(each)) == 1
        ends, scales = (layout.ends[-1:], each[-1:]) if one else (layout.ends, each)
        vector = self._source.perturb_(total, purpose, 0, ends, scales, denominator)
        return PrivateGradient(vector, layout, scales=tuple(s / denominator for s in each))


def unprotected(vector: Tensor, layout: Layout) -> PrivateGradient:
    """A raw gradient, marked as such: for the non-private baseline."""
    return PrivateGradient(vector, layout, protected=False)


def post_processed(vector: Tensor, layout: Layout) -> PrivateGradient:
    """A gradient that was computed from released values and public labels alone."""
    return PrivateGradient(vector, layout)


def noised(vector: Tensor, deviation: float, purpose: str, source: RandomSource) -> Tensor:
    """A vector with normal noise of this standard deviation on every element.

    Addressed by purpose and content, like the noise of a step.
    """
    flat = vector.detach().flatten().clone()
    address = source.address(purpose, flat, [deviation])
    return source.perturb_(flat, address, 0, [flat.numel()], [deviation], 1.0).view(vector.shape)
