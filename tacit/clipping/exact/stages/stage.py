"""What every stage of a program is."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from tacit.clipping.exact.uses import Use
from tacit.errors import ModelError


class NotRowwiseError(ModelError):
    """A layer whose sums are not proven: its name in the model, and why."""

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(f"{layer or 'the model'}: {reason}")
        self.layer, self.reason = layer, reason


class Stage(ABC):
    """A part of a program; what it keeps of `run` is gone after `back`.

    What is computed follows from the model and from shapes: no value of any row decides it.
    """

    trained = False
    """Whether it has parameters that get gradients."""

    @abstractmethod
    def run(self, x: Tensor) -> Tensor:
        """The output, row by row; the first dimension is that of the rows."""

    @abstractmethod
    def back(self, g: Tensor, input_needed: bool) -> tuple[Tensor | None, list[Use]]:
        """The gradient of the input, and the uses of trainable parameters."""


def check_input(name: str, x: Tensor, known: bool, expected: str) -> None:
    """Refuse an input that is not of float32, or of dimensions that a layer is not known for."""
    if not known or x.dtype != torch.float32:
        raise NotRowwiseError(
            name,
            f"its input has {x.dim()} dimensions and type {x.dtype}; sums are proven for"
            f" {expected} per record, in float32",
        )
