"""What a contestant is: something that takes whole training steps on one given batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

from clipping_suite.torch_network import with_weights
from clipping_suite.workloads import Problem, Weights


class AbsentError(Exception):
    """The contestant is not installed here."""


class UnsupportedError(Exception):
    """The contestant cannot do this workload in this setting."""


@dataclass(frozen=True)
class Setting:
    """What every contestant may choose: the memory layout, and the rows of a micro-batch."""

    channels_last: bool = False
    piece: int | None = None

    def label(self) -> str:
        """A few words for tables.

        >>> Setting(True, 128).label()
        'channels_last, micro-batches of 128'
        """
        words = ["channels_last"] if self.channels_last else []
        words += [f"micro-batches of {self.piece}"] if self.piece else []
        return ", ".join(words) or "whole batch"


@dataclass(frozen=True)
class Step:
    """The step that everyone takes: clip each record, add noise·clip, divide by the batch."""

    clip: float
    noise: float = 1.0
    learning_rate: float = 0.001


class Contestant(Protocol):
    """A model with its batch, ready to train."""

    def step(self) -> None:
        """One whole step, finished when the call returns."""
        ...

    def weights(self) -> Weights:
        """Copies of the weights as they are now, by torch's names and in torch's shapes."""
        ...


Builder: TypeAlias = Callable[[Problem, Setting, Step], Contestant]
Pieces: TypeAlias = list[tuple[Tensor, Tensor]]


def torch_parts(problem: Problem, setting: Setting) -> tuple[nn.Sequential, Pieces]:
    """The model and its batch, laid out and cut as the setting says."""
    model = with_weights(problem.workload.network, problem.weights)
    x, y = torch.from_numpy(problem.x), torch.from_numpy(problem.y)
    if setting.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    rows = setting.piece or len(x)
    return model, list(zip(x.split(rows), y.split(rows), strict=True))
