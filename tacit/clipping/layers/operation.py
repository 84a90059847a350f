"""What a layer rule has to say about one use of its parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from tacit.clipping.layers.axis import Axis, Rows
from tacit.clipping.layers.choice import Chooser
from tacit.clipping.layers.contributions import Contribution
from tacit.clipping.layers.slots import Slot

Saved = tuple[Tensor, ...]
Gradients = list[tuple[Slot, Contribution]]
Resolver = Callable[..., "Sequence[Slot | None] | None"]


@dataclass(frozen=True)
class Placement:
    """Where the records are in the tensors of one use, and who chooses between algorithms."""

    axis: Axis
    rows: Rows
    chooser: Chooser

    def arrange(self, tensor: Tensor, kept: int) -> Tensor:
        """The tensor as [records, positions, *kept trailing dimensions]."""
        return self.axis.arrange(tensor, kept, self.rows)


class Operation(ABC):
    """One use of parameters in a forward pass: run it, go back through it, account for it."""

    kept: int
    """Trailing dimensions of the output that belong to one position of one row."""

    @abstractmethod
    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        """The output, and what `back` needs besides the input."""

    @abstractmethod
    def back(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, at: Placement | None
    ) -> tuple[Tensor | None, Gradients]:
        """The input's gradient, and with a placement the parameters' per-record gradients."""


Rule = Callable[..., "tuple[Tensor, Operation] | None"]
