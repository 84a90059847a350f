"""What differs between methods: what a step may release, and how it is made.

The loop asks a method what step t will release, writes that to the ledger, and only then lets
the method do it. A method that rejects, that noises activations, or that releases once and
post-processes ever after fits the same two calls; what few methods do besides has a default.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from dp_accounting import DpEvent

from tacit.clipping.contract import Batch, LossFunction
from tacit.privacy import events
from tacit.privacy.claims import Claim
from tacit.privacy.relations import Relation


@dataclass(frozen=True)
class Promise:
    """Everything about privacy that is fixed before a run starts."""

    method: str
    relation: Relation
    steps: int
    released: tuple[str, ...]
    sampling: str
    proof: str | None
    details: dict[str, Any]
    public: tuple[str, ...] = ()
    """What the method treats as public beyond the recipe and the number of records."""
    warnings: tuple[str, ...] = ()
    changing_state: Mapping[str, str] = field(default_factory=dict)
    """Buffers that the method changes, by their names in the state dict, and why each is noised or
    public; all others are compared with their initial bits (`tacit.fixed_state`)."""

    def as_json(self) -> dict[str, Any]:
        """Plain values for the ledger's first entry and the certificate."""
        return {
            "method": self.method,
            "relation": self.relation.value,
            "steps": self.steps,
            "released": list(self.released),
            "sampling": self.sampling,
            "proof": self.proof,
            **({"changing_state": dict(self.changing_state)} if self.changing_state else {}),
            **self.details,
        }


class Method(ABC):
    """One way to train on the shared loop."""

    promise: Promise

    @abstractmethod
    def charge(self, step: int) -> DpEvent:
        """What step `step` will release; depends on public values only."""

    @abstractmethod
    def draw(self, step: int) -> Iterable[Batch]:
        """The private records of a step, in micro-batches; nothing is released by drawing."""

    @abstractmethod
    def step(self, step: int, loss: LossFunction, batches: Iterable[Batch]) -> None:
        """Release exactly what `charge(step)` said, and update the weights from it."""

    def owed(self, step: int, spent: Counter[DpEvent]) -> DpEvent:
        """What the step is charged with: no less than it releases beyond what is paid for."""
        return self.charge(step)

    def planned(self) -> DpEvent:
        """At most what all steps together will release."""
        return events.counted(self.charge(step) for step in range(self.promise.steps))

    def admits(self, spent: Counter[DpEvent], step: int) -> bool:
        """Whether the step may follow on what was spent."""
        return True

    @property
    def updated(self) -> bool:
        """Whether the last step changed the weights."""
        return True

    @property
    def stopped(self) -> bool:
        """Whether it has decided, from released and public values, to take no further step."""
        return False

    def as_released(self) -> AbstractContextManager[None]:
        """The model as it would be released now; made of public and released values only."""
        return nullcontext()

    def outcome(self) -> dict[str, Any]:
        """What the steps released besides the weights, for the ledger's last entry."""
        return {}

    def trace(self) -> dict[str, Any]:
        """What the method saw of itself, for the report; public and released values only."""
        return {}

    def claim(self, delta: float) -> Claim | None:
        """What the method's paper would say the run costs; None while it cannot be known."""
        return None

    def claim_after(self, steps: int, delta: float) -> Claim | None:
        """What the method's paper would say was spent after so many steps."""
        return None
