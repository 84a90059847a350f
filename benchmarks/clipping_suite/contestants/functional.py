"""torch.func: per-example gradients by vmap(grad), clipped by hand."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from clipping_suite.contestants.base import Setting, Step, torch_parts
from clipping_suite.torch_network import weights_of
from clipping_suite.workloads import Problem, Weights


class TorchFunc:
    """All per-example gradients of a micro-batch at once, then norms and weighted sums."""

    def __init__(self, problem: Problem, setting: Setting, step: Step) -> None:
        self._model, self._pieces = torch_parts(problem, setting)
        self._rows = len(problem.y)
        self._step = step
        self._weights = dict(self._model.named_parameters())
        self._detached = {name: p.detach() for name, p in self._weights.items()}
        self._gradients = vmap(grad(self._loss), in_dims=(None, 0, 0))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=step.learning_rate)

    def _loss(self, weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = functional_call(self._model, weights, (x.unsqueeze(0),))
        return F.cross_entropy(outputs, y.unsqueeze(0))

    @torch.no_grad()
    def step(self) -> None:
        total: dict[str, Tensor] = {}
        for x, y in self._pieces:
            gradients = self._gradients(self._detached, x, y)
            norms = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients.values()]
            norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)
            factors = (self._step.clip / norm.clamp_min(1e-30)).clamp_max(1)
            for name, g in gradients.items():
                summed = torch.tensordot(factors, g, dims=1)
                total[name] = total[name] + summed if name in total else summed
        for name, parameter in self._weights.items():
            if self._step.noise:
                noise = torch.randn_like(parameter)
                total[name].add_(noise, alpha=self._step.noise * self._step.clip)
            parameter.grad = total[name].div_(self._rows)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def weights(self) -> Weights:
        return weights_of(self._model)


build = TorchFunc
