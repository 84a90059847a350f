"""Known faults, planted into the running code for a while, to see that an audit finds them.

Each fault changes what the code does but not what it charges, as a real mistake would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from dp_accounting import DpEvent
from torch import Tensor

from tacit.audit.floating_point import DISTINGUISHERS, lossy_perturb_
from tacit.clipping.contract import ClippedSum
from tacit.clipping.rules import Flat
from tacit.data.sampling import Indices, PoissonSampler
from tacit.methods.selective import Selective
from tacit.noise.gaussian import GaussianNoise, PrivateGradient
from tacit.noise.source import RandomSource
from tacit.privacy import events
from tacit.privacy.relations import Relation
from tacit.privacy.selective import SelectiveSchedule

_RATE = 4  # how many times too often a wrong sampler takes records


@dataclass(frozen=True)
class Fault:
    """A mistake with the settings in which it shows; `plant` makes it, while it is entered."""

    name: str
    plant: Callable[[], AbstractContextManager[Any]]
    settings: dict[str, Any]
    harmless: bool = False
    hostile_trials: int = 0
    """Runs of trials on a hostile loss, each with one coin; 0 plays gradient canaries."""
    distinguisher: str = ""
    """A floating-point attack on the noise (`tacit.audit.floating_point`), played instead."""


def _weaker_noise(share: float) -> AbstractContextManager[Any]:
    right = ClippedSum.noise_scales

    def wrong(self: ClippedSum, multiplier: float, relation: Relation) -> tuple[float, ...]:
        return tuple(share * scale for scale in right(self, multiplier, relation))

    return patch.object(ClippedSum, "noise_scales", wrong)


def _no_noise() -> AbstractContextManager[Any]:
    def wrong(
        self: RandomSource,
        vector: Tensor,
        purpose: str,
        index: int,
        ends: Sequence[int],
        scales: Sequence[float],
        divisor: float,
    ) -> Tensor:
        return vector.div_(divisor)

    return patch.object(RandomSource, "perturb_", wrong)


def _no_clipping() -> AbstractContextManager[Any]:
    def wrong(self: Flat, norms: Tensor) -> Tensor:
        return torch.ones_like(norms)

    return patch.object(Flat, "factors", wrong)


def _larger_samples() -> AbstractContextManager[Any]:
    def wrong(self: PoissonSampler, step: int) -> Indices:
        words = self.source.words("sampling", step, self.records)
        return np.flatnonzero(words < _RATE * self.probability * 2**32)

    return patch.object(PoissonSampler, "draw", wrong)


def _noise_where_records_are() -> AbstractContextManager[Any]:
    """One noisy value for each record that was drawn, and nothing for the others: who was drawn
    can be seen, so sampling protects nobody, though it is charged as if it did."""
    right = GaussianNoise.privatise

    def wrong(
        self: GaussianNoise, clipped: ClippedSum, step: int, denominator: float
    ) -> PrivateGradient:
        touched = clipped.vector != 0
        private = right(self, clipped, step, denominator)
        return replace(private, vector=private.vector * touched)

    return patch.object(GaussianNoise, "privatise", wrong)


def _single_precision_noise() -> AbstractContextManager[Any]:
    """Noise of the right size whose bits give the sum away."""
    return patch.object(RandomSource, "perturb_", lossy_perturb_)


FEW_ACCEPTED = 6


def _accepted_only() -> AbstractContextManager[Any]:
    """Charge accepted updates as ordinary ones and rejected trials not at all, as paper 001 does
    (but not by its looser arithmetic), for more updates than there are."""

    def wrong(self: Selective) -> DpEvent:
        schedule = self.schedule
        assert isinstance(schedule, SelectiveSchedule)
        return events.repeated(replace(schedule, coin=None).trial_event(), FEW_ACCEPTED)

    return patch.object(Selective, "planned", wrong)


_OTHER_PAIRING = "radius lattice, halves"  # the planted sampler pairs lanes
_DPSGD = {"method": "dpsgd"}
_RARELY_ACCEPTED = {
    **{"method": "dpsur", "noise": 50.0, "delta": 0.05, "epochs": 2.25},
    **{"batch_size": 12, "validation_batch_size": 12, "validation_noise": 0.3, "beta": -1.3},
    **{"learning_rate": 1.0, "optimizer": "sgd", "momentum": 0.0, "clip": 1.0},
}
"""150 trials of 800 records, of which a hostile loss lets the noise accept one in 16,000."""
_DPFTRL = {"method": "dpftrl"}
FAULTS = (
    Fault("correct DP-SGD", nullcontext, _DPSGD, harmless=True),
    Fault("correct DP-FTRL", nullcontext, _DPFTRL, harmless=True),
    Fault("no noise", _no_noise, _DPSGD),
    Fault("half the noise", lambda: _weaker_noise(0.5), _DPSGD),
    Fault("half the noise, correlated", lambda: _weaker_noise(0.5), _DPFTRL),
    Fault("no clipping", _no_clipping, _DPSGD),
    Fault("samples four times too large", _larger_samples, _DPSGD),
    Fault(
        "release per record, charged as sampled",
        _noise_where_records_are,
        {**_DPSGD, "relation": "replace-one"},
    ),
    Fault("correct DPSUR, hostile loss", nullcontext, _RARELY_ACCEPTED, True, hostile_trials=60),
    Fault(
        "accepted updates only are charged, hostile loss",
        _accepted_only,
        _RARELY_ACCEPTED,
        hostile_trials=240,
    ),
    *(
        Fault(f"correct noise, {name}", nullcontext, {}, harmless=True, distinguisher=name)
        for name in DISTINGUISHERS
    ),
    *(
        Fault(f"Box–Muller in float32, {name}", _single_precision_noise, {}, distinguisher=name)
        for name in DISTINGUISHERS
        if name != _OTHER_PAIRING
    ),
)
