"""The networks of paper 003, each with BatchNorm or with something that can be private."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

from torch import Tensor, nn

from tacit.errors import ModelError

Shape = tuple[int, ...]
Norm = Callable[[int], nn.Module]


def checked_image(shape: Shape, model: str, smallest: int) -> tuple[int, int, int]:
    """Channels, height and width of images that are large enough for a network."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ModelError(
            f"model is {model!r}, but records have shape {shape}; it needs images (channels,"
            f" height, width) of at least {smallest}×{smallest}; 'mlp' and 'linear' take any shape"
        )
    return shape[0], shape[1], shape[2]


def group_norm(channels: int) -> nn.Module:
    """GroupNorm with the most groups, at most 32, that divide the channels."""
    return nn.GroupNorm(
        next(g for g in range(min(32, channels), 0, -1) if channels % g == 0), channels
    )


def convnet5(shape: Shape, classes: int, tokens: int, norm: Norm | None = None) -> nn.Module:
    """Four 3×3 convolutions with average pooling, and a linear layer (003, Table 1).

    The order is convolution, normalisation, ReLU, pooling; the last pooling averages all places.
    """
    channels = checked_image(shape, "convnet5", 8)[0]
    layers: list[nn.Module] = []
    widths = (channels, 32, 64, 64, 128)
    for index, (before, after) in enumerate(pairwise(widths)):
        layers += [nn.Conv2d(before, after, 3, padding=1)]
        layers += [norm(after)] if norm else []
        last = index == len(widths) - 2
        layers += [nn.ReLU(), nn.AdaptiveAvgPool2d(1) if last else nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1], classes))


def bn_lenet5(shape: Shape, classes: int, tokens: int, norm: Norm | None = None) -> nn.Module:
    """LeNet-5 with tanh, average pooling and a normalisation after each convolution (003, Table 2).

    Images of 28×28 are padded to the paper's 32×32.
    """
    channels, height, width = checked_image(shape, "bn-lenet5", 28)
    across, down = max(0, 32 - width) // 2, max(0, 32 - height) // 2
    if height + 2 * down != 32 or width + 2 * across != 32:
        raise ModelError(
            f"model is 'bn-lenet5', but records have shape {shape}; it needs images of 28×28 or"
            " 32×32"
        )
    layers: list[nn.Module] = []
    if across or down:
        layers.append(nn.ZeroPad2d((across, across, down, down)))
    for before, after, pool in ((channels, 6, True), (6, 16, True), (16, 120, False)):
        layers += [nn.Conv2d(before, after, 5)]
        layers += [norm(after)] if norm else []
        layers += [nn.Tanh(), *([nn.AvgPool2d(2)] if pool else [])]
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, classes)
    )


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions around which the input is carried, by 1×1 where the shape changes."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = norm(after)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), norm(after)
            )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out: Tensor = self.relu(inner + self.shortcut(x))
        return out


def resnet18(shape: Shape, classes: int, tokens: int, norm: Norm = group_norm) -> nn.Module:
    """ResNet-18 for 32×32 images (He et al. 2016): 62 tensors, the paper's L."""
    channels = checked_image(shape, "resnet18", 16)[0]
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 64, 3, 1, 1, bias=False),
        norm(64),
        nn.ReLU(),
    ]
    for before, after, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [
            ResidualBlock(before, after, stride, norm),
            ResidualBlock(after, after, 1, norm),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


NORMALISED: dict[str, Callable[[Shape, int, int], nn.Module]] = {
    "convnet5": convnet5,
    "convnet5-bn": partial(convnet5, norm=nn.BatchNorm2d),
    "convnet5-gn": partial(convnet5, norm=group_norm),
    "bn-lenet5": partial(bn_lenet5, norm=nn.BatchNorm2d),
    "gn-lenet5": partial(bn_lenet5, norm=group_norm),
    "resnet18-bn": partial(resnet18, norm=nn.BatchNorm2d),
    "resnet18-gn": partial(resnet18, norm=group_norm),
}
