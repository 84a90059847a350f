"""Plain SGD: the step that privacy is compared with."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from clipping_suite.contestants.base import Setting, Step, torch_parts
from clipping_suite.torch_network import weights_of
from clipping_suite.workloads import Problem, Weights


class PlainSgd:
    """Forward, backward, update; gradients of micro-batches add up."""

    def __init__(self, problem: Problem, setting: Setting, step: Step) -> None:
        self._model, self._pieces = torch_parts(problem, setting)
        self._rows = len(problem.y)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=step.learning_rate)

    def step(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        for x, y in self._pieces:
            loss = F.cross_entropy(self._model(x), y, reduction="sum") / self._rows
            loss.backward()
        self._optimizer.step()

    def weights(self) -> Weights:
        return weights_of(self._model)


build = PlainSgd
