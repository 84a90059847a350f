"""DP-FTRL (Kairouz et al. 2021) and its successors: correlated noise on the running sums.

θ_t = θ_0 − s̃_t/λ, with s̃_t the noised sum of all clipped gradients so far, is plain gradient
descent with rate 1/λ on gradients whose noise is correlated; momentum likewise. So the method
shares the optimizers, and differs from DP-SGD in its batches, its noise and its event.

Proofs: docs/proofs/dpftrl.md (tree), docs/proofs/banded.md (banded, and with sampling).
"""

from __future__ import annotations

from collections.abc import Iterable

from dp_accounting import DpEvent

from tacit.clipping.contract import Batch, ClippingEngine, LossFunction
from tacit.data.batches import Gatherer
from tacit.data.sampling import FixedOrderSampler, GroupedPoissonSampler
from tacit.errors import ArgumentError, NoProofError
from tacit.methods.base import Promise
from tacit.methods.clipped import ClippedSteps
from tacit.noise.correlated import BandedStream, CorrelatedNoise, Memory, TreeStream
from tacit.noise.source import RandomSource
from tacit.noise.sums import SumLog
from tacit.optim import PrivateOptimizer
from tacit.privacy.amplified import GroupedSchedule
from tacit.privacy.claims import Claim
from tacit.privacy.fixed_order import FixedOrderSchedule
from tacit.privacy.relations import Relation

_MOST_BYTES = 4 << 30
_RELEASED = ("the weights after every step", "the number of steps", "the time it took")


class DpFtrl:
    """Binds the order of batches, clipping, correlated noise and event.

    Guarantee: all steps up to t together release one Gaussian mechanism whose squared
    sensitivity is what the schedule computed from the order that `sampler` follows.
    """

    def __init__(
        self,
        schedule: FixedOrderSchedule,
        sampler: FixedOrderSampler,
        engine: ClippingEngine,
        gatherer: Gatherer,
        optimizer: PrivateOptimizer,
        source: RandomSource,
        memory: Memory,
        sums: SumLog,
        relation: Relation,
    ) -> None:
        if not isinstance(sampler, FixedOrderSampler):
            raise NoProofError(
                f"DP-FTRL was given a {type(sampler).__name__}; its proof needs an order fixed in"
                " advance: use FixedOrderSampler"
            )
        correlation = schedule.correlation
        if sampler.reshuffled and correlation.order == "same":
            raise NoProofError(
                "batches are reshuffled between epochs, but the sensitivity was computed for one"
                " order; keep the order, or account for order 'reshuffled'"
            )
        if sampler.batches != schedule.batches:
            raise NoProofError(
                f"the order has {sampler.batches} batches per epoch, the schedule"
                f" {schedule.batches}; they must agree"
            )
        self._schedule = schedule
        size = engine.layout.size
        _check_memory(schedule.bands, size)
        if correlation.mechanism == "banded":
            stream: BandedStream | TreeStream = BandedStream(schedule.bands, size, source, memory)
        else:
            leaves = correlation.restart_every * schedule.batches or schedule.steps
            stream = TreeStream(
                leaves,
                size,
                source,
                memory,
                reduced=correlation.reduced,
                completion=correlation.completion,
            )
        noise = CorrelatedNoise(stream, schedule.noise, source, sums)
        self._steps = ClippedSteps(
            sampler, engine, noise, gatherer, optimizer, source, schedule.batch_size
        )
        self.promise = Promise(
            method="dpftrl",
            relation=relation,
            steps=schedule.steps,
            released=_RELEASED,
            sampling=_order_sentence(schedule),
            proof="docs/proofs/banded.md" if schedule.bands else "docs/proofs/dpftrl.md",
            details={
                "noise_multiplier": schedule.noise,
                "expected_batch_size": schedule.batch_size,
                "records": schedule.records,
                "mechanism": _mechanism_sentence(schedule),
                "sensitivity_squared": schedule.sensitivity_squared,
            },
        )

    def charge(self, step: int) -> DpEvent:
        return self._schedule.charge(step)

    def draw(self, step: int) -> Iterable[Batch]:
        return self._steps.draw(step)

    def step(self, step: int, loss: LossFunction, batches: Iterable[Batch]) -> None:
        self._steps.take(step, loss, batches)

    def claim(self, delta: float) -> Claim | None:
        return self._schedule.claimed(delta)


class AmplifiedBanded:
    """Banded noise on Poisson samples from groups that take turns.

    Guarantee: each round of as many steps as there are bands releases
    PoissonSampled(q, Gaussian(σ)), q the rate within a group, and nothing else.
    """

    def __init__(
        self,
        schedule: GroupedSchedule,
        sampler: GroupedPoissonSampler,
        engine: ClippingEngine,
        gatherer: Gatherer,
        optimizer: PrivateOptimizer,
        source: RandomSource,
        memory: Memory,
        sums: SumLog,
        relation: Relation,
    ) -> None:
        if sampler.groups != schedule.bands or sampler.probability != schedule.probability:
            raise NoProofError(
                f"the sampler has {sampler.groups} groups, the factor {schedule.bands} bands; a"
                " record's uses must lie as many steps apart as there are bands"
            )
        self._schedule = schedule
        _check_memory(schedule.bands, engine.layout.size)
        stream = BandedStream(schedule.bands, engine.layout.size, source, memory)
        noise = CorrelatedNoise(stream, schedule.noise * schedule.column_norm, source, sums)
        self._steps = ClippedSteps(
            sampler, engine, noise, gatherer, optimizer, source, schedule.batch_size
        )
        self.promise = Promise(
            method="dpftrl",
            relation=relation,
            steps=schedule.steps,
            released=_RELEASED,
            sampling=(
                f"{schedule.bands} groups by position take turns; every record of the group"
                f" independently with probability {sampler.probability:.8g}"
            ),
            proof="docs/proofs/banded.md",
            details={
                "noise_multiplier": schedule.noise,
                "sampling_probability": sampler.probability,
                "expected_batch_size": schedule.batch_size,
                "records": schedule.records,
                "mechanism": f"banded square root with {schedule.bands} bands, with sampling",
            },
        )

    def charge(self, step: int) -> DpEvent:
        return self._schedule.charge(step)

    def draw(self, step: int) -> Iterable[Batch]:
        return self._steps.draw(step)

    def step(self, step: int, loss: LossFunction, batches: Iterable[Batch]) -> None:
        self._steps.take(step, loss, batches)

    def claim(self, delta: float) -> Claim | None:
        return None


def _check_memory(bands: int, size: int) -> None:
    needed = 4 * bands * size
    if needed > _MOST_BYTES:
        raise ArgumentError(
            f"bands is {bands}: for {size:,} weights the noise in use would take"
            f" {needed / 2**30:.1f} GiB; set method.bands to at most {_MOST_BYTES // (4 * size)}"
        )


def _order_sentence(schedule: FixedOrderSchedule) -> str:
    each = f"every record at most once in each epoch of {schedule.batches} batches"
    if schedule.correlation.order == "reshuffled":
        return f"no sampling: {each}, in a new order each epoch, accounted for at the worst order"
    return f"no sampling: {each}, in one order fixed before training"


def _mechanism_sentence(schedule: FixedOrderSchedule) -> str:
    correlation = schedule.correlation
    if schedule.bands:
        return f"banded square root with {schedule.bands} bands"
    parts = ["binary tree"]
    if correlation.restart_every:
        filled = ", filled up first" if correlation.completion else ""
        parts.append(f"a new one every {correlation.restart_every} epochs{filled}")
    if correlation.reduced:
        parts.append("variance-reduced estimates")
    return "; ".join(parts)
