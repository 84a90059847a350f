"""Networks described without a framework, so that every contestant trains the same function.

Weights are named by their place, as torch names them ("3.main.0.weight"), and shaped as torch
shapes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias, Union


@dataclass(frozen=True)
class Linear:
    """x·Wᵀ + b."""

    inputs: int
    outputs: int


@dataclass(frozen=True)
class Conv:
    """Two-dimensional convolution with a square kernel."""

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0
    bias: bool = True


@dataclass(frozen=True)
class GroupNorm:
    """Normalisation over groups of channels, with scale and shift."""

    groups: int
    channels: int


@dataclass(frozen=True)
class MaxPool:
    """The largest value of each window."""

    size: int
    stride: int


@dataclass(frozen=True)
class Relu:
    """max(x, 0)."""


@dataclass(frozen=True)
class Tanh:
    """tanh(x)."""


@dataclass(frozen=True)
class Flatten:
    """All features of a record in one row."""


@dataclass(frozen=True)
class SpatialMean:
    """The mean of each channel over height and width."""


@dataclass(frozen=True)
class MeanEmbedding:
    """The mean of the token vectors of a text; token 0 is padding and does not count."""

    tokens: int
    width: int


@dataclass(frozen=True)
class Residual:
    """relu(main(x) + shortcut(x)); an empty shortcut is the identity."""

    main: Network
    shortcut: Network


Layer: TypeAlias = Union[  # noqa: UP007
    Linear, Conv, GroupNorm, MaxPool, Relu, Tanh, Flatten, SpatialMean, MeanEmbedding, Residual
]
Network: TypeAlias = tuple[Layer, ...]


def mlp(*widths: int) -> Network:
    """Fully connected layers with ReLU between them."""
    layers: list[Layer] = [Flatten()]
    for before, after in pairwise(widths):
        layers += [Linear(before, after), Relu()]
    return tuple(layers[:-1])


def lenet5() -> Network:
    """LeNet-5 with ReLU and max-pooling, for 28×28 images: `tacit.models` "lenet5"."""
    return (
        Conv(1, 6, 5, padding=2),
        Relu(),
        MaxPool(2, 2),
        Conv(6, 16, 5),
        Relu(),
        MaxPool(2, 2),
        Flatten(),
        Linear(400, 120),
        Relu(),
        Linear(120, 84),
        Relu(),
        Linear(84, 10),
    )


def tempered_cnn() -> Network:
    """The tempered-sigmoid network for 28×28 images: `tacit.models` "tempered-cnn"."""
    return (
        Conv(1, 16, 8, stride=2, padding=3),
        Tanh(),
        MaxPool(2, 1),
        Conv(16, 32, 4, stride=2),
        Tanh(),
        MaxPool(2, 1),
        Flatten(),
        Linear(512, 32),
        Tanh(),
        Linear(32, 10),
    )


def cifar_convnet() -> Network:
    """Three 3×3 convolutions with GroupNorm for 32×32 colour images, each pooled."""
    return _pooled_stages(1)


def cifar_deep_convnet() -> Network:
    """The same with two convolutions before every pooling."""
    return _pooled_stages(2)


def _pooled_stages(convolutions: int) -> Network:
    layers: list[Layer] = []
    inputs = 3
    for outputs in (32, 64, 128):
        for _ in range(convolutions):
            layers += [Conv(inputs, outputs, 3, padding=1), GroupNorm(8, outputs), Relu()]
            inputs = outputs
        layers.append(MaxPool(2, 2))
    return (*layers, Flatten(), Linear(2048, 10))


def resnet18() -> Network:
    """ResNet-18 for 32×32 images, BatchNorm replaced by GroupNorm in 16 groups."""
    layers: list[Layer] = [Conv(3, 64, 3, padding=1, bias=False), GroupNorm(16, 64), Relu()]
    before = 64
    for after, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [_block(before, after, stride), _block(after, after, 1)]
        before = after
    return (*layers, SpatialMean(), Linear(512, 10))


def _block(before: int, after: int, stride: int) -> Residual:
    main: Network = (
        Conv(before, after, 3, stride=stride, padding=1, bias=False),
        GroupNorm(16, after),
        Relu(),
        Conv(after, after, 3, padding=1, bias=False),
        GroupNorm(16, after),
    )
    if stride == 1 and before == after:
        return Residual(main, ())
    return Residual(main, (Conv(before, after, 1, stride=stride, bias=False), GroupNorm(16, after)))


def text_mean(tokens: int, width: int, classes: int) -> Network:
    """Mean of token vectors, then a linear layer: `tacit.models` "text-mean"."""
    return (MeanEmbedding(tokens, width), Linear(width, classes))
