"""DP-SGD (Abadi et al. 2016): Poisson samples, per-record clipping, Gaussian noise on the sum.

Proof: docs/proofs/dpsgd.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from dp_accounting import DpEvent

from tacit.clipping.contract import Batch, ClippingEngine, LossFunction
from tacit.data.batches import Gatherer
from tacit.data.sampling import PoissonSampler
from tacit.errors import NoProofError
from tacit.methods.base import Promise
from tacit.methods.clipped import ClippedSteps
from tacit.noise.gaussian import GaussianNoise
from tacit.noise.source import RandomSource
from tacit.optim import PrivateOptimizer
from tacit.privacy import events
from tacit.privacy.claims import Claim
from tacit.privacy.plan import SampledSchedule
from tacit.privacy.relations import Relation


class DpSgd:
    """Binds sampler, clipping, noise and event, so that none can change without the others.

    Guarantee: step t releases PoissonSampled(q, Gaussian(σ)) under add-or-remove-one and nothing
    else; q and σ are those of the schedule. The sum is divided by the expected batch size.
    """

    def __init__(
        self,
        schedule: SampledSchedule,
        sampler: PoissonSampler,
        engine: ClippingEngine,
        gatherer: Gatherer,
        optimizer: PrivateOptimizer,
        source: RandomSource,
        relation: Relation,
    ) -> None:
        if not isinstance(sampler, PoissonSampler):
            raise NoProofError(
                f"DP-SGD was given a {type(sampler).__name__}; its proof needs Poisson samples:"
                " use PoissonSampler"
            )
        self._schedule = schedule
        self._sampler = sampler
        noise = GaussianNoise(source, schedule.noise)
        self._steps = ClippedSteps(
            sampler, engine, noise, gatherer, optimizer, source, schedule.batch_size
        )
        self.promise = Promise(
            method="dpsgd",
            relation=relation,
            steps=schedule.steps,
            released=("the weights after every step", "the number of steps", "the time it took"),
            sampling=(
                f"Poisson: every record independently with probability {sampler.probability:.8g}"
                " at every step"
            ),
            proof="docs/proofs/dpsgd.md",
            details={
                "noise_multiplier": schedule.noise,
                "sampling_probability": sampler.probability,
                "expected_batch_size": schedule.batch_size,
                "records": schedule.records,
            },
        )

    def charge(self, step: int) -> DpEvent:
        return self._sampler.event(events.gaussian(self._schedule.noise))

    def draw(self, step: int) -> Iterable[Batch]:
        return self._steps.draw(step)

    def step(self, step: int, loss: LossFunction, batches: Iterable[Batch]) -> None:
        self._steps.take(step, loss, batches)

    def claim(self, delta: float) -> Claim | None:
        return self._schedule.claimed(delta)
