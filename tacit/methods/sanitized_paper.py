"""The algorithm of paper 000 as it is written: no guarantee for the weights follows from it.

Why: docs/proofs/sanitization.md. It runs so that the paper's figures can be repeated and compared
with what is sound; its ledger charges unprotected releases.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from tacit.clipping.contract import Batch, LossFunction
from tacit.data.batches import Gatherer
from tacit.data.sampling import PoissonSampler
from tacit.fixed_state import ANY_STATE
from tacit.methods.base import Promise
from tacit.methods.plain import PlainSgd
from tacit.methods.sanitized_watch import Watch
from tacit.models.sanitization import Split
from tacit.noise.source import RandomSource
from tacit.optim import PrivateOptimizer
from tacit.privacy.claims import Claim
from tacit.privacy.relations import Relation
from tacit.privacy.sanitized import NO_GUARANTEE, SanitizedSchedule, claimed_after


class PaperSanitization(PlainSgd):
    """Plain gradients through a noised layer, on Poisson samples: protects nothing."""

    def __init__(
        self,
        model: nn.Module,
        schedule: SanitizedSchedule,
        sampler: PoissonSampler,
        gatherer: Gatherer,
        optimizer: PrivateOptimizer,
        source: RandomSource,
        watch: Watch,
        details: dict[str, Any],
        delta: float,
    ) -> None:
        super().__init__(model, schedule.steps, sampler, gatherer, optimizer, source)
        self._schedule, self._watch, self._layer = schedule, watch, Split(model).layer
        self._delta = delta
        self.promise = Promise(
            method="sanitization",
            relation=Relation.REPLACE_FEATURES,
            steps=schedule.steps,
            released=("the weights after every step",),
            sampling=f"Poisson: every record with probability {sampler.probability:.8g}",
            proof="docs/proofs/sanitization.md",
            details={**details, "no_guarantee_because": NO_GUARANTEE},
            changing_state={ANY_STATE: "nothing is protected"},
        )

    def step(self, step: int, loss: LossFunction, batches: Iterable[Batch]) -> None:
        self._layer.begin(step)
        super().step(step, loss, batches)
        self._watch.after(step, self._layer.spread)

    @property
    def stopped(self) -> bool:
        """Whether a flag has ended the run."""
        return self._watch.stopped

    def trace(self) -> dict[str, Any]:
        """What the run saw of itself."""
        found = self._watch.trace()
        epochs = len(found["sanitization"]["spread"])
        each = self._schedule.records / self._schedule.batch_size
        found["sanitization"]["claimed"] = [
            claimed_after(self._schedule, round(each * (i + 1)), self._delta).epsilon
            for i in range(epochs)
        ]
        return found

    def claim(self, delta: float) -> Claim | None:
        return self._schedule.claimed(delta)

    def claim_after(self, steps: int, delta: float) -> Claim | None:
        """What the paper says was spent by then."""
        return claimed_after(self._schedule, steps, delta)
