"""What methods with clipped gradients share: gather, clip, add noise, divide, update."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dp_accounting import DpEvent

from tacit.clipping.contract import Batch, ClippedSum, ClippingEngine, LossFunction
from tacit.clipping.numerics import Numerics
from tacit.clipping.thresholds import Thresholds
from tacit.data.batches import Gatherer
from tacit.data.sampling import Indices
from tacit.methods.base import Method, Promise
from tacit.noise.gaussian import PrivateGradient
from tacit.noise.source import RandomSource
from tacit.optim import PrivateOptimizer
from tacit.privacy.claims import Claim
from tacit.weight_writes import weights_unwritten

RELEASED = ("the weights after every step", "the number of steps", "the time it took, coarsely")


class Sampler(Protocol):
    """Which records a step sees."""

    def draw(self, step: int) -> Indices: ...


class Noise(Protocol):
    """What makes a private gradient of a clipped sum."""

    def privatise(self, clipped: ClippedSum, step: int, denominator: float) -> PrivateGradient: ...


class Schedule(Protocol):
    """What the steps release and what that costs, from public values alone."""

    @property
    def batch_size(self) -> float: ...

    def charge(self, step: int) -> DpEvent: ...

    def claimed(self, delta: float) -> Claim | None: ...


@dataclass(frozen=True)
class Equipment:
    """What turns records into clipped sums, and private gradients into new weights."""

    engine: ClippingEngine
    gatherer: Gatherer
    optimizer: PrivateOptimizer
    source: RandomSource
    thresholds: Thresholds | None = None
    """What the rule is at each step, where it is not always the same."""
    numerics: Numerics | None = None
    """What is known about the sums of the engine."""
    known_layers: bool = False
    """Whether the model's layers are known to write to no weight."""

    def clipped_sum(self, step: int, loss: LossFunction, batches: Iterable[Batch]) -> ClippedSum:
        """The clipped sum of a step's records, by the rule of that step."""
        if self.thresholds is not None:
            self.engine.rule = self.thresholds.at(step, self.engine, loss)
        with self.weights_unwritten():
            return self.engine.clipped_sum(loss, batches, self.gatherer.views)

    def weights_unwritten(self) -> AbstractContextManager[None]:
        """Refuse a pass that leaves weights with other bits than it found; known layers never do,
        and comparing takes some per cent of a small model's step."""
        if self.known_layers:
            return nullcontext()
        return weights_unwritten(self.optimizer.weights)

    @property
    def details(self) -> dict[str, Any]:
        """What the ledger keeps of the clipping: whether its sums are proven, and which parameters
        are clipped together."""
        found: dict[str, Any] = {}
        if self.numerics is not None:
            found["numerics"] = self.numerics.as_json()
        if self.thresholds is None or not self.thresholds.apart:
            return found
        groups = self.thresholds.groups
        return found | {
            "norm_groups": len(groups),
            "groups": [list(group) for group in groups.members],
        }


class ClippedMethod(Method):
    """Steps that release a noised sum of clipped gradients, divided by a public constant.

    A subclass binds sampler, noise and schedule that one proof covers, and says so in `promise`.
    """

    def __init__(
        self,
        promise: Promise,
        schedule: Schedule,
        sampler: Sampler,
        noise: Noise,
        equipment: Equipment,
        denominator: float | None = None,
    ) -> None:
        self.promise = replace(promise, details=promise.details | equipment.details)
        self._schedule = schedule
        self._sampler = sampler
        self._noise = noise
        self._equipment = equipment
        self._denominator = denominator or schedule.batch_size

    def charge(self, step: int) -> DpEvent:
        """What step `step` will release, by the schedule."""
        return self._schedule.charge(step)

    def draw(self, step: int) -> Iterable[Batch]:
        """The records of a step, in micro-batches."""
        seed = self._equipment.source.torch_seed("augmentation", step)
        return self._equipment.gatherer.micro_batches(self._sampler.draw(step), seed)

    def step(self, step: int, loss: LossFunction, batches: Iterable[Batch]) -> None:
        """One update of the weights from the noised sum."""
        clipped = self._equipment.clipped_sum(step, loss, batches)
        private = self._noise.privatise(clipped, step, self._denominator)
        self._equipment.optimizer.apply(private, step)

    def claim(self, delta: float) -> Claim | None:
        """What the method's paper would say of this schedule."""
        return self._schedule.claimed(delta)

    @property
    def schedule(self) -> Schedule:
        """What the steps release."""
        return self._schedule

    @property
    def denominator(self) -> float:
        """The public constant that noised sums are divided by."""
        return self._denominator

    @property
    def sampler(self) -> Sampler:
        """Which records a step sees; its draws are private."""
        return self._sampler
