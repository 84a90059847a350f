"""A described network as a torch module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clipping_suite import network
from clipping_suite.network import Layer, Network
from clipping_suite.workloads import Problem, Weights, Workload, records


class _Residual(nn.Module):
    def __init__(self, main: Network, shortcut: Network) -> None:
        super().__init__()
        self.main = module(main)
        self.shortcut = module(shortcut)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.main(x) + self.shortcut(x))


class _MeanEmbedding(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width, padding_idx=0)

    def forward(self, ids: Tensor) -> Tensor:
        present = (ids != 0).sum(1, keepdim=True).clamp_min(1)
        summed: Tensor = self.embedding(ids).sum(1)
        return summed / present


class _SpatialMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def module(layers: Network) -> nn.Sequential:
    """The network as a torch module, its layers in the order described."""
    return nn.Sequential(*(_layer(layer) for layer in layers))


def _layer(layer: Layer) -> nn.Module:
    match layer:
        case network.Linear(inputs, outputs):
            return nn.Linear(inputs, outputs)
        case network.Conv(inputs, outputs, kernel, stride, padding, bias):
            return nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=bias)
        case network.GroupNorm(groups, channels):
            return nn.GroupNorm(groups, channels)
        case network.MaxPool(size, stride):
            return nn.MaxPool2d(size, stride)
        case network.Relu():
            return nn.ReLU()
        case network.Tanh():
            return nn.Tanh()
        case network.Flatten():
            return nn.Flatten()
        case network.SpatialMean():
            return _SpatialMean()
        case network.MeanEmbedding(tokens, width):
            return _MeanEmbedding(tokens, width)
        case network.Residual(main, shortcut):
            return _Residual(main, shortcut)


def with_weights(layers: Network, weights: Mapping[str, NDArray[Any]]) -> nn.Sequential:
    """The network with these weights."""
    built = module(layers)
    built.load_state_dict({name: torch.from_numpy(w.copy()) for name, w in weights.items()})
    return built


def weights_of(model: nn.Module) -> Weights:
    """Copies of a module's weights by name."""
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


def problem(workload: Workload, seed: int = 0) -> Problem:
    """A workload with torch's own initial weights and made-up records."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        weights = weights_of(module(workload.network))
    return Problem(workload, weights, *records(workload, seed))
