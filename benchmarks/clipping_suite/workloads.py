"""The workloads: a network, a batch size, and made-up records of the right shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clipping_suite import network
from clipping_suite.network import Network

Weights = dict[str, NDArray[np.float32]]

_LARGE_BATCH = 16_384
_LARGE_BATCH_PIECE = 64


@dataclass(frozen=True)
class Workload:
    """One network trained on batches of one size; `tokens` is set where records are texts.

    `clip` lies near the median norm, so that some records are clipped and others are not.
    """

    name: str
    title: str
    network: Network
    batch: int
    shape: tuple[int, ...]
    clip: float
    classes: int = 10
    tokens: int = 0

    @property
    def images(self) -> bool:
        """Whether records have channels, height and width."""
        return len(self.shape) == 3

    @property
    def piece(self) -> int:
        """Rows of a micro-batch, where a setting asks for micro-batches."""
        return 128 if self.batch > 128 else max(1, self.batch // 2)


_MNIST, _CIFAR = (1, 28, 28), (3, 32, 32)
_ALL = (
    Workload(
        "mlp", "MLP 784-512-256-128-10", network.mlp(784, 512, 256, 128, 10), 256, (784,), 2.9
    ),
    Workload("lenet5-256", "LeNet-5", network.lenet5(), 256, _MNIST, 1.95),
    Workload("lenet5-1024", "LeNet-5", network.lenet5(), 1024, _MNIST, 1.95),
    Workload("tempered-cnn", "tempered CNN", network.tempered_cnn(), 1024, _MNIST, 4.5),
    Workload("cifar-gn", "CIFAR convnet + GroupNorm", network.cifar_convnet(), 512, _CIFAR, 50.0),
    Workload("resnet18-gn", "ResNet-18 + GroupNorm", network.resnet18(), 64, _CIFAR, 68.0),
    Workload(
        "text-mean",
        "embedding mean-pool, 256 tokens",
        network.text_mean(10_000, 16, 2),
        256,
        (256,),
        0.73,
        classes=2,
        tokens=10_000,
    ),
    Workload(
        *("cifar-deep", "CIFAR convnet of six convolutions", network.cifar_deep_convnet()),
        *(512, _CIFAR, 67.0),
    ),
)
WORKLOADS = {workload.name: workload for workload in _ALL}
BEYOND = ("cifar-deep",)
"""Workloads that no aim is about: heavier ones, measured beside the others."""
QUICK = ("mlp", "lenet5-256", "text-mean")


def named(name: str, batch: int | None = None) -> Workload:
    """A workload by name, with another batch size where one is given."""
    workload = WORKLOADS[name]
    return workload if batch is None else replace(workload, batch=batch)


def large_batch() -> tuple[Workload, int]:
    """ResNet-18 with a logical batch of 16,384, and the rows of the pieces it is computed in."""
    return named("resnet18-gn", _LARGE_BATCH), _LARGE_BATCH_PIECE


@dataclass(frozen=True)
class Problem:
    """A workload with initial weights, records and labels: the same for every contestant."""

    workload: Workload
    weights: Weights
    x: NDArray[np.float32] | NDArray[np.int64]
    y: NDArray[np.int64]

    def save(self, path: Path) -> None:
        """Write what the contestants' processes read."""
        named: dict[str, Any] = {f"weight/{name}": each for name, each in self.weights.items()}
        np.savez(path, x=self.x, y=self.y, **named)

    @classmethod
    def load(cls, workload: Workload, path: Path) -> Problem:
        """Read what `save` wrote."""
        with np.load(path) as stored:
            weights = {k[7:]: stored[k] for k in stored.files if k.startswith("weight/")}
            return cls(workload, weights, stored["x"], stored["y"])


def records(
    workload: Workload, seed: int = 0
) -> tuple[NDArray[np.float32] | NDArray[np.int64], NDArray[np.int64]]:
    """Normal features, or tokens that repeat as words do, with labels at random."""
    generator = np.random.default_rng(seed)
    y = generator.integers(0, workload.classes, workload.batch)
    size = (workload.batch, *workload.shape)
    if workload.tokens:
        skewed = generator.random(size) ** 3
        return 1 + (skewed * (workload.tokens - 1)).astype(np.int64), y
    return generator.standard_normal(size, dtype=np.float32), y
