"""tacit: the fast engine, its noise and its optimizer, as a run puts them together."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clipping_suite.contestants.base import AbsentError, Contestant, Setting, Step, torch_parts
from clipping_suite.torch_network import weights_of
from clipping_suite.workloads import Problem, Weights
from tacit.clipping.fast import FastEngine
from tacit.clipping.rules import Flat
from tacit.noise.gaussian import GaussianNoise, PrivateGradient
from tacit.noise.source import RandomSource
from tacit.optim import PrivateOptimizer


class Tacit:
    """Clipped sum, noise from ChaCha20 keyed by the operating system, update."""

    def __init__(self, problem: Problem, setting: Setting, step: Step) -> None:
        self._model, self._pieces = torch_parts(problem, setting)
        self._rows = len(problem.y)
        self._engine = FastEngine(self._model, Flat(step.clip))
        noise = GaussianNoise(RandomSource.from_entropy(), step.noise) if step.noise else None
        self._noise = noise
        inner = torch.optim.SGD(self._model.parameters(), lr=step.learning_rate)
        self._optimizer = PrivateOptimizer(self._model, inner)
        self._taken = 0

    def step(self) -> None:
        clipped = self._engine.clipped_sum(_losses, self._pieces, views=1)
        if self._noise is None:
            gradient = PrivateGradient(clipped.vector / self._rows, clipped.layout)
        else:
            gradient = self._noise.privatise(clipped, self._taken, denominator=self._rows)
        self._optimizer.apply(gradient, self._taken)
        self._taken += 1

    def weights(self) -> Weights:
        return weights_of(self._model)


def _losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def build(problem: Problem, setting: Setting, step: Step) -> Contestant:
    """The engine in pure torch; the process must have been started with TACIT_NATIVE=0."""
    if find_spec("tacit.native") and os.environ.get("TACIT_NATIVE") != "0":
        raise RuntimeError("TACIT_NATIVE must be 0 for the contestant in pure torch")
    return Tacit(problem, setting, step)


def build_native(problem: Problem, setting: Setting, step: Step) -> Contestant:
    """The engine with compiled kernels."""
    if not native_available():
        raise AbsentError("tacit.native is not built here")
    return Tacit(problem, setting, step)


def native_available() -> bool:
    """Whether compiled kernels are there and not turned off."""
    if find_spec("tacit.native") is None or os.environ.get("TACIT_NATIVE") == "0":
        return False
    native: Any = import_module("tacit.native")
    available = getattr(native, "available", True)
    return bool(available() if callable(available) else available)
