"""Updates from private gradients: torch's optimizers, schedules and weight averages around them.

Everything here only ever sees noised gradients and public step numbers, so by post-processing it
costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn

from tacit.errors import NoProofError
from tacit.noise.gaussian import PrivateGradient
from tacit.sparsify import Sparsifier
from tacit.structure import Structure


class Schedule(str, Enum):
    """How the learning rate changes over the run."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"

    def factor(self, step: int, steps: int, warmup: float) -> float:
        """The factor on the learning rate at a step; `warmup` is a fraction of the run.

        >>> Schedule.LINEAR.factor(50, 100, 0.0)
        0.5
        """
        done = step / steps
        if done < warmup:
            return (step + 1) / (warmup * steps + 1)
        rest = (done - warmup) / (1 - warmup)
        if self is Schedule.LINEAR:
            return 1 - rest
        if self is Schedule.COSINE:
            return (1 + math.cos(math.pi * rest)) / 2
        return 1.0


@dataclass(frozen=True)
class Pace:
    """A learning rate with its schedule over a known number of steps."""

    learning_rate: float
    steps: int
    schedule: Schedule = Schedule.CONSTANT
    warmup: float = 0.0
    decay: float = 1.0
    epoch: int = 1
    """Steps after which the rate falls by the factor `decay`."""

    def at(self, step: int) -> float:
        """The learning rate of a step."""
        decayed = self.learning_rate * self.decay ** (step // self.epoch)
        return decayed * self.schedule.factor(step, self.steps, self.warmup)


class PrivateOptimizer:
    """A torch optimizer that accepts a PrivateGradient and nothing else."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        pace: Pace | None = None,
        sparsifier: Sparsifier | None = None,
    ) -> None:
        self.inner = optimizer
        self.factor = 1.0
        """On the learning rate; a method may lower it as training goes on."""
        self._structure = Structure(model)
        self._pace = pace
        self.sparsifier = sparsifier

    @property
    def weights(self) -> list[Tensor]:
        """What it moves."""
        return [weight for group in self.inner.param_groups for weight in group["params"]]

    def apply(self, gradient: PrivateGradient, step: int) -> None:
        """One update of the weights."""
        if not isinstance(gradient, PrivateGradient):
            raise NoProofError(
                f"the optimizer was given a {type(gradient).__name__}; only a PrivateGradient may"
                " change the weights"
            )
        rates = [group["lr"] for group in self.inner.param_groups]
        if self._pace is not None:
            rates = [self._pace.at(step)] * len(rates)
        self._set_rates([rate * self.factor for rate in rates])
        self._forget_gradients()
        self._structure = self._structure.current()
        parameters = self._structure.parameters
        for name, value in gradient.layout.views(gradient.vector).items():
            parameter = parameters[name]
            parameter.grad = _laid_like(parameter, value)
        self._lay_out_state()
        self.inner.step()
        self._forget_gradients()
        if self.sparsifier is not None:
            rate = max(g["lr"] / (1 - g.get("momentum", 0.0)) for g in self.inner.param_groups)
            self.sparsifier.after(parameters, gradient, rate, step)
        self._set_rates(rates)

    def _set_rates(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.inner.param_groups, rates, strict=True):
            group["lr"] = rate

    def _lay_out_state(self) -> None:
        """Fused optimizers read memory in its own order: a state that was read back must lie like
        its weight, or moments of one weight would move another."""
        for group in self.inner.param_groups:
            for parameter in group["params"] if group.get("fused") else ():
                state = self.inner.state[parameter]
                for key, value in state.items():
                    if isinstance(value, Tensor) and value.shape == parameter.shape:
                        state[key] = _laid_like(parameter, value)

    def _forget_gradients(self) -> None:
        """None that anyone else left may move a weight."""
        for group in self.inner.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def _laid_like(parameter: Tensor, value: Tensor) -> Tensor:
    if value.stride() == parameter.stride() and value.dtype == parameter.dtype:
        return value
    return torch.empty_like(parameter, requires_grad=False).copy_(value)


class WeightAverage:
    """Exponential moving average of the weights, with a short memory at the start.

    The decay at step t is min(decay, (1 + t)/(10 + t)), so early weights are forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model: nn.Module, step: int) -> None:
        """Take in the weights after a step."""
        kept = min(self.decay, (1 + step) / (10 + step))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    self.values[name].lerp_(parameter, 1 - kept)


@contextmanager
def weights_swapped(model: nn.Module, values: Mapping[str, Tensor] | None) -> Iterator[None]:
    """The model with other weights for a while, its own put back whatever happens."""
    if values is None:
        yield
        return
    own = {name: p.detach().clone() for name, p in model.named_parameters()}
    try:
        _copy_into(model, values)
        yield
    finally:
        _copy_into(model, own)


def _copy_into(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])
