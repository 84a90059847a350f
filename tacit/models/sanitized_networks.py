"""The networks of paper 000: each holds a sanitization layer before its last linear layer."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.data.patches import PatchFeatures
from tacit.errors import ModelError
from tacit.models.sanitization import SanitizationLayer

Shape = tuple[int, ...]
FUNNEL_WIDTH = 50
PATCH_WIDTH = (300, 600)
_CHANNELS = (16, 32, 64)
_STAGES = (64, 128, 256, 512)


def funnel_cnn(shape: Shape, classes: int, tokens: int, width: int = FUNNEL_WIDTH) -> nn.Module:
    """Three stages of convolution and pooling, then layers of 8n, 4n, 2n and n (000, 4.3 and 6.1).

    The paper does not give its channels; 16, 32 and 64 are taken, and torch's own first weights:
    with larger ones every element starts at 0 or C, where gradients vanish.
    """
    channels, height, side = _image(shape, "funnel-cnn")
    layers: list[nn.Module] = []
    for before, after in pairwise((channels, *_CHANNELS)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    flat = _CHANNELS[-1] * (height // 8) * (side // 8)
    layers.append(nn.Flatten())
    for before, after in pairwise((flat, 8 * width, 4 * width, 2 * width, width)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, SanitizationLayer(), nn.Linear(width, classes))


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut, normalised in groups."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(32, after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(32, after)
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.shortcut(x))


def resnet18(shape: Shape, classes: int, tokens: int) -> nn.Module:
    """ResNet-18 for small images, sanitized at its global average pooling: n = 512 (000, 6.1).

    Normalised in groups where the paper's has BatchNorm, which mixes the records of a batch and
    keeps their statistics (docs/proofs/sanitization.md).
    """
    channels, _, _ = _image(shape, "resnet-18")
    layers: list[nn.Module] = [
        nn.Conv2d(channels, _STAGES[0], 3, padding=1, bias=False),
        nn.GroupNorm(32, _STAGES[0]),
        nn.ReLU(),
    ]
    before = _STAGES[0]
    for index, after in enumerate(_STAGES):
        layers += [ResidualBlock(before, after, 1 if index == 0 else 2)]
        layers += [ResidualBlock(after, after, 1)]
        before = after
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), SanitizationLayer()]
    return nn.Sequential(*layers, nn.Linear(_STAGES[-1], classes))


def patches(shape: Shape, classes: int, tokens: int, width: int = 0) -> nn.Module:
    """Features from patches, projected to 300 dimensions (600 for colour) or to `width`: an encoder
    that is never trained on private records, for guarantees 'one-time' and 'class-sums'."""
    channels, height, side = _image(shape, "patches")
    size = min(6, height // 2, side // 2)
    if channels == 1:
        features = PatchFeatures(channels, 50, size, 4)
    else:
        features = PatchFeatures(channels, 200, size, 2, stride=2)
    width = min(width or PATCH_WIDTH[channels > 1], len(features.centre))
    project = nn.Linear(len(features.centre), width, bias=False)
    return nn.Sequential(features, project, SanitizationLayer(), nn.Linear(width, classes))


def projection(shape: Shape, classes: int, tokens: int, width: int = 0) -> nn.Module:
    """Any record, flattened and projected to at most 300 (or `width`) random orthogonal directions:
    an encoder that learns nothing, for scattering features and tables.

    Features of variance one come out as vectors of length about one.
    """
    size = math.prod(shape)
    width = min(width or PATCH_WIDTH[0], size)
    project = nn.Linear(size, width, bias=False)
    with torch.no_grad():
        nn.init.orthogonal_(project.weight)
        project.weight.div_(math.sqrt(width))
    head = nn.Linear(width, classes)
    return nn.Sequential(nn.Flatten(), project, SanitizationLayer(), head)


def _image(shape: Shape, model: str) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise ModelError(
            f"model is {model!r}, but records have shape {shape}; it needs images (channels,"
            " height, width) of at least 8×8"
        )
    return shape[0], shape[1], shape[2]
