"""What differs between methods: what a step may release, and how it is made.

The loop asks a method what step t will release, writes that to the ledger, and only then lets
the method do it. A method that rejects, that noises activations, or that releases once and
post-processes ever after fits the same two calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from dp_accounting import DpEvent

from tacit.clipping.contract import Batch, LossFunction
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

    def as_json(self) -> dict[str, Any]:
        """Plain values for the ledger's first entry and the certificate."""
        return {
            "method": self.method,
            "relation": self.relation.value,
            "steps": self.steps,
            "released": list(self.released),
            "sampling": self.sampling,
            "proof": self.proof,
            **self.details,
        }


@runtime_checkable
class Completed(Protocol):
    """A method whose released model needs more than its weights, such as statistics."""

    def as_released(self) -> AbstractContextManager[None]:
        """The model as it would be released now; made of public and released values only."""
        ...


class Method(Protocol):
    """One way to train on the shared loop."""

    promise: Promise

    def charge(self, step: int) -> DpEvent:
        """What step `step` will release; depends on public values only."""
        ...

    def draw(self, step: int) -> Iterable[Batch]:
        """The private records of a step, in micro-batches; nothing is released by drawing."""
        ...

    def step(self, step: int, loss: LossFunction, batches: Iterable[Batch]) -> None:
        """Release exactly what `charge(step)` said, and update the weights from it."""
        ...

    def claim(self, delta: float) -> Claim | None:
        """What the method's paper would say the run costs; None while it cannot be known."""
        ...


@runtime_checkable
class Deciding(Protocol):
    """A method that decides by earlier results what it does next, and whether to go on."""

    @property
    def updated(self) -> bool:
        """Whether the last step changed the weights."""
        ...

    def planned(self) -> DpEvent:
        """At most what all steps together will release."""
        ...

    def admits(self, spent: Counter[DpEvent], step: int) -> bool:
        """Whether the step may follow on what was spent."""
        ...

    def outcome(self) -> dict[str, Any]:
        """What the steps released besides the weights, for the ledger's last entry."""
        ...


@runtime_checkable
class Watched(Protocol):
    """A method that watches itself, from public values alone, and may end a run early."""

    @property
    def stopped(self) -> bool:
        """Whether it has decided to take no further step."""
        ...

    def trace(self) -> dict[str, Any]:
        """What it saw, for the report."""
        ...

    def claim_after(self, steps: int, delta: float) -> Claim | None:
        """What the method's paper would say was spent after so many steps."""
        ...
