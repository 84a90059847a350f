"""What a layer rule has to say about one use of its parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from tacit.clipping.layers.axis import Axis, Rows
from tacit.clipping.layers.choice import Chooser
from tacit.clipping.layers.contributions import Contribution
from tacit.clipping.layers.slots import Lookup, Slot

Saved = tuple[Tensor, ...]
Gradients = list[tuple[Slot, Contribution]]


class Placement(NamedTuple):
    """Where the records are in the tensors of one use, and who chooses between algorithms."""

    axis: Axis
    rows: Rows
    chooser: Chooser

    def arrange(self, tensor: Tensor, kept: int) -> Tensor:
        """The tensor as [records, positions, *kept trailing dimensions]."""
        return self.axis.arrange(tensor, kept, self.rows)

    def vectors(self, tensor: Tensor) -> Tensor:
        """[records, positions, width], or [records, width] where there is one position."""
        if self._one_each(tensor, 1):
            return tensor
        arranged = self.arrange(tensor, 1)
        return arranged[:, 0] if arranged.shape[1] == 1 else arranged

    def _one_each(self, tensor: Tensor, kept: int) -> bool:
        """Whether the tensor is as it should be: one position for each record, nothing to sum."""
        rows = self.rows
        return rows.views == 1 and tensor.dim() == kept + 1 and tensor.shape[0] == rows.count

    def summed(self, tensor: Tensor, kept: int) -> Tensor:
        """The tensor summed over the positions of each record: [records, *kept dimensions]."""
        if self._one_each(tensor, kept):
            return tensor
        arranged = self.arrange(tensor, kept)
        return arranged[:, 0] if arranged.shape[1] == 1 else arranged.sum(1)


class Operation(ABC):
    """One use of parameters in a forward pass: run it, go back through it, account for it."""

    slots: list[Slot]
    """The slots that receive gradients, at least one."""

    saves_input = True
    """Whether `back` looks at the input, which is then kept until the backward pass."""

    kept: int
    """Trailing dimensions of the output that belong to one position of one row."""

    @abstractmethod
    def leading(self, x: Tensor) -> Sequence[int]:
        """The sizes of the dimensions among which the rows are to be found."""

    def better_intercepted(self, x: Tensor) -> bool:
        """Whether `run` and `back` have a faster way than torch takes by itself."""
        return False

    def lookup(self, x: Tensor, result: Tensor) -> Lookup | None:
        """What to remember of a call in which no dimension belongs to the rows, if anything."""
        return None

    @abstractmethod
    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        """The output, and what `back` needs besides the input."""

    @abstractmethod
    def back(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, at: Placement | None
    ) -> tuple[Tensor | None, Gradients]:
        """The input's gradient, and with a placement the parameters' per-record gradients."""


Match = tuple[Tensor, Operation]
"""The input that a gradient flows back to, and the operation that it goes through."""

ReadMatch = tuple[str, Operation]
"""The same read off a node of autograd's graph, which holds its input under this name."""

Rule = Callable[..., "Match | None"]
"""Called with the model's parameters and then as the torch function itself."""
