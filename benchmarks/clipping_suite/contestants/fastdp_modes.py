"""fastDP (awslabs/fast-differential-privacy) from a checkout, in each of its modes."""

from __future__ import annotations

import contextlib
import io
import os
import sys

import torch
from torch.nn import functional as F

from clipping_suite.contestants.base import AbsentError, Builder, Setting, Step, torch_parts
from clipping_suite.torch_network import weights_of
from clipping_suite.workloads import Problem, Weights

CHECKOUT = "CLIPPING_SUITE_FASTDP"
if not os.environ.get(CHECKOUT):
    raise AbsentError("no path to fastDP was given (--fastdp)")
sys.path.insert(0, os.environ[CHECKOUT])
try:
    from fastDP import PrivacyEngine
except ImportError as error:
    raise AbsentError(f"fastDP cannot be imported from the given path ({error})") from error


class FastDp:
    """Abadi's clipping over all layers; private gradients of micro-batches add up."""

    def __init__(self, mode: str, problem: Problem, setting: Setting, step: Step) -> None:
        self._model, self._pieces = torch_parts(problem, setting)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=step.learning_rate)
        with contextlib.redirect_stdout(io.StringIO()):
            engine = PrivacyEngine(
                self._model,
                batch_size=len(problem.y),
                sample_size=100 * len(problem.y),
                epochs=1,
                max_grad_norm=step.clip,
                noise_multiplier=step.noise,
                clipping_mode=mode,
                clipping_fn="Abadi",
                clipping_style="all-layer",
                loss_reduction="sum",
            )
            engine.attach(self._optimizer)
        self._rows = len(problem.y)
        for group in self._optimizer.param_groups:
            group["lr"] = step.learning_rate / self._rows

    def step(self) -> None:
        for x, y in self._pieces:
            F.cross_entropy(self._model(x), y, reduction="sum").backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def weights(self) -> Weights:
        return weights_of(self._model)


def mode(name: str) -> Builder:
    """A builder for one of fastDP's clipping modes."""
    return lambda problem, setting, step: FastDp(name, problem, setting, step)
