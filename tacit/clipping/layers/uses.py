"""One use of parameters, and the search for where its records lie."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tacit.clipping.layers.axis import Axis
from tacit.clipping.layers.operation import Operation, Placement, Saved

if TYPE_CHECKING:
    from tacit.clipping.layers.recording import Recording


class Stage(Enum):
    """What a backward pass through an intercepted layer is for."""

    FORWARD = "the user's own: only input gradients"
    PROBE = "finding out where the records lie"
    RECORD = "measuring and keeping per-record gradients"


class RecordsMixedError(Exception):
    """A use of parameters in which the gradients of different records cannot be told apart."""

    def __init__(self, use: Use) -> None:
        super().__init__(use.name)
        self.use = use


class SmallerBatchError(Exception):
    """A batch that has to be taken in parts of at most so many records."""

    def __init__(self, records: int) -> None:
        super().__init__(records)
        self.records = records


class Use:
    """One intercepted use of parameters, and the axes its records may lie along.

    `settled` says that a probe found the axis, or that there is only one record; `final` that
    there is no other way to account for this use.
    """

    def __init__(
        self,
        recording: Recording,
        name: str,
        key: Hashable,
        found_among: Hashable,
        candidates: list[Axis],
        *,
        settled: bool,
        final: bool,
    ) -> None:
        self.name = name
        self.key = key
        self._found_among = found_among
        self.settled = settled
        self.final = final
        self._recording = recording
        self._possible = self._candidates = candidates
        self._touched = False

    def rely_on(self, axis: Axis) -> None:
        """Take the records to lie where an earlier batch has shown them."""
        self._candidates, self.settled = [axis], True

    def doubt(self) -> None:
        """Let a probe find out where the records lie."""
        self._candidates, self.settled = self._possible, False

    @property
    def ambiguous(self) -> bool:
        """Whether a probe saw gradients that fit more than one axis."""
        return self._touched and len(self._candidates) > 1

    def settle(self) -> None:
        """Remember what the probes found."""
        if self._touched and len(self._candidates) == 1 and not self._recording.moved:
            self._recording.known[self._found_among] = self._candidates[0]

    def back(
        self, operation: Operation, x: Tensor, saved: Saved, g: Tensor, input_needed: bool
    ) -> Tensor | None:
        """Go back through one layer and do what the stage asks for on the way.

        A layer that got no rows, as in a branch that no record took, has no gradient.
        """
        at = self.placement(g, operation.kept)
        if not g.numel():
            return torch.zeros_like(x) if input_needed else None
        input_gradient, gradients = operation.back(x, saved, g, input_needed, at)
        self._recording.add(gradients)
        return input_gradient

    def placement(self, g: Tensor, kept: int) -> Placement | None:
        """Where the records lie, when gradients are to be recorded; a probe looks and moves on."""
        recording = self._recording
        if recording.stage is Stage.PROBE:
            self._exclude(g, kept)
        if recording.stage is not Stage.RECORD or recording.unverified:
            return None
        if not self.settled and not self._touched:
            recording.unverified = bool(_finite_part(g).any())
            if recording.unverified:
                return None
            if len(self._candidates) > 1:
                if not bool(g.any()):
                    return None
                raise SmallerBatchError(1)  # what is not finite hides where records lie
        return Placement(self._candidates[0], recording.rows, recording.chooser)

    def look(self, g: Tensor, kept: int) -> None:
        """Let a probe see a gradient where there is nothing to record."""
        self.placement(g, kept)

    def _exclude(self, g: Tensor, kept: int) -> None:
        recording = self._recording
        g = _finite_part(g)
        quiet = ~recording.selected
        fitting = [
            axis
            for axis in self._candidates
            if not bool(axis.arrange(g, kept, recording.rows)[quiet].any())
        ]
        if not fitting:
            raise RecordsMixedError(self)
        self._candidates = fitting
        self._touched = self._touched or bool(g.any())


def _finite_part(g: Tensor) -> Tensor:
    """What is not finite says nothing about where it came from: zero times infinity is enough."""
    return g.nan_to_num(0.0, 0.0, 0.0)
