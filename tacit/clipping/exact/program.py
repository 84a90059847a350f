"""Models as fixed programs that compute each row by itself.

Nothing here looks at values to decide what to do: which functions run follows from the model and
from shapes alone. So a row's bits do not depend on what the other rows hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tacit.clipping.exact.stages.stage import Stage
from tacit.clipping.exact.uses import Use


class Program(Stage):
    """Forward and backward pass of known row-wise layers that follow each other.

    Guarantee: row r of the output, and row r of every use, are functions of row r of the input,
    of the weights, of public random numbers (dropout) and of the shape of the batch.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = tuple(stages)
        self.trained = any(stage.trained for stage in stages)

    def run(self, x: Tensor) -> Tensor:
        for stage in self._stages:
            x = stage.run(x)
        return x

    def back(self, g: Tensor, input_needed: bool) -> tuple[Tensor | None, list[Use]]:
        found: list[Use] = []
        gradient: Tensor | None = g
        for place in range(len(self._stages) - 1, -1, -1):
            assert gradient is not None
            needed = input_needed or any(stage.trained for stage in self._stages[:place])
            gradient, uses = self._stages[place].back(gradient, needed)
            found += uses
            if gradient is None:
                break
        return gradient, found


class Residual(Stage):
    """The sum of two programs on the same input."""

    def __init__(self, inner: Program, shortcut: Program) -> None:
        self._inner, self._shortcut = inner, shortcut
        self.trained = inner.trained or shortcut.trained

    def run(self, x: Tensor) -> Tensor:
        return self._inner.run(x) + self._shortcut.run(x)

    def back(self, g: Tensor, input_needed: bool) -> tuple[Tensor | None, list[Use]]:
        gradient, uses = self._inner.back(g, input_needed)
        other, more = self._shortcut.back(g, input_needed)
        if gradient is None or other is None:
            return None, uses + more
        return gradient + other, uses + more
