"""Opacus through its front door, `PrivacyEngine.make_private`, in each of its modes."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clipping_suite.contestants.base import AbsentError, Builder, Setting, Step, torch_parts
from clipping_suite.torch_network import weights_of
from clipping_suite.workloads import Problem, Weights

try:
    from opacus import PrivacyEngine
except ImportError as error:
    raise AbsentError(f"Opacus is not installed ({error})") from error


class Opacus:
    """A wrapped model with Opacus' optimizer; micro-batches are its virtual steps."""

    def __init__(self, mode: str, problem: Problem, setting: Setting, step: Step) -> None:
        warnings.simplefilter("ignore")
        self._inner, self._pieces = torch_parts(problem, setting)
        optimizer = torch.optim.SGD(self._inner.parameters(), lr=step.learning_rate)
        everything = TensorDataset(torch.from_numpy(problem.x), torch.from_numpy(problem.y))
        self._loss: nn.Module = nn.CrossEntropyLoss()
        model, self._optimizer, *rest = PrivacyEngine().make_private(
            module=self._inner,
            optimizer=optimizer,
            criterion=self._loss,
            data_loader=DataLoader(everything, batch_size=len(everything)),
            noise_multiplier=step.noise,
            max_grad_norm=step.clip,
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
        self._model = model
        if mode == "ghost":
            self._loss = rest[0]

    def step(self) -> None:
        last = len(self._pieces) - 1
        for number, (x, y) in enumerate(self._pieces):
            if last:
                self._optimizer.signal_skip_step(do_skip=number < last)
            self._optimizer.zero_grad()
            self._loss(self._model(x), y).backward()
            self._optimizer.step()
        self._optimizer.zero_grad()

    def weights(self) -> Weights:
        return weights_of(self._inner)


def mode(name: str) -> Builder:
    """A builder for one of Opacus' ways to per-example gradients."""
    return lambda problem, setting, step: Opacus(name, problem, setting, step)
