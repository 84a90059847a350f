"""Images made by a program: an encoder may learn from them without any person's data.

Colour images are dead leaves (Lee, Mumford and Huang 2001): discs and bars of random size, colour
and stripes that cover each other, whose edges and scales follow those of photographs. Images of one
channel are strokes unless asked otherwise: a few thick curves on an empty ground. Each image has a
label, the kind of its last and largest shape, for encoders that learn by telling kinds apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tacit.errors import ArgumentError

Pictures = Literal["auto", "strokes", "leaves"]
"""What images show; "auto" draws strokes for one channel, leaves for more."""

KINDS = 10
"""Labels of generated images."""
_LEAVES = 24
_BATCH = 256


@dataclass(frozen=True)
class GeneratedImages:
    """Images in [0, 1] with the kind of shape that each shows.

    >>> images = GeneratedImages.draw(4, (3, 32, 32), seed=0)
    >>> images.pixels.shape, int(images.kinds.max()) < KINDS
    (torch.Size([4, 3, 32, 32]), True)
    """

    pixels: Tensor
    kinds: Tensor

    @classmethod
    def draw(
        cls, count: int, shape: tuple[int, ...], seed: int, pictures: Pictures = "auto"
    ) -> GeneratedImages:
        """`count` images of this shape; the same seed gives the same images."""
        if len(shape) != 3 or min(shape[1:]) < 4:
            raise ArgumentError(
                f"records have shape {shape}; images can be generated for channels × height ×"
                " width from 4 pixels on: use encoder 'given' for other records"
            )
        generator = torch.Generator().manual_seed(seed)
        kinds = torch.randint(0, KINDS, (count,), generator=generator)
        usual: Pictures = "strokes" if shape[0] == 1 else "leaves"
        make = _strokes if (usual if pictures == "auto" else pictures) == "strokes" else _leaves
        parts = [make(k, shape, generator) for k in kinds.split(_BATCH)]
        return cls(torch.cat(parts), kinds)


def _uniform(generator: torch.Generator, rows: int, low: float, high: float) -> Tensor:
    return torch.rand(rows, 1, 1, generator=generator) * (high - low) + low


def _grid(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    height, width = shape[1:]
    y = torch.arange(height, dtype=torch.float32).view(1, -1, 1) / height
    x = torch.arange(width, dtype=torch.float32).view(1, 1, -1) / width
    return y, x


def _leaves(kinds: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Shapes that cover each other, small ones far more often than large ones."""
    rows, channels = len(kinds), shape[0]
    images = _colours(rows, channels, generator).expand(rows, *shape).clone()
    for leaf in range(_LEAVES):
        last = leaf == _LEAVES - 1
        kind = kinds if last else torch.randint(0, KINDS, (rows,), generator=generator)
        u = torch.rand(rows, 1, 1, generator=generator)
        radius = _uniform(generator, rows, 0.2, 0.4) if last else 0.07 / torch.sqrt(1 - 0.98 * u)
        inside, tone = _shape(kind, radius, shape, generator)
        colour = _colours(rows, channels, generator)
        painted = (colour + tone[:, None]).clamp(0, 1)
        images = torch.where(inside[:, None], painted, images)
    noise = torch.randn(images.shape, generator=generator)
    return (images + 0.02 * noise).clamp(0, 1)


def _colours(rows: int, channels: int, generator: torch.Generator) -> Tensor:
    """Mostly brightness, some hue, as in photographs."""
    brightness = torch.rand(rows, 1, 1, 1, generator=generator)
    hue = torch.rand(rows, channels, 1, 1, generator=generator) - 0.5
    return (brightness + 0.5 * hue).clamp(0, 1)


def _shape(
    kind: Tensor, radius: Tensor, shape: tuple[int, ...], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Where a shape lies, and the stripes or shading on it. Kinds are five outlines, each plain
    or striped."""
    rows = len(kind)
    y, x = _grid(shape)
    dy = y - _uniform(generator, rows, 0.0, 1.0)
    dx = x - _uniform(generator, rows, 0.0, 1.0)
    angle = _uniform(generator, rows, 0.0, 2 * math.pi)
    a = dx * torch.cos(angle) + dy * torch.sin(angle)
    b = dy * torch.cos(angle) - dx * torch.sin(angle)
    distance = torch.sqrt(a**2 + b**2)
    outlines = torch.stack(
        (
            distance < radius,
            (a.abs() < radius) & (b.abs() < radius / 3),
            (a.abs() < radius * 0.8) & (b.abs() < radius * 0.8),
            (distance < radius) & (distance > radius * 0.55),
            (b > -radius / 2) & (b + 1.7 * a.abs() < radius),
        )
    )
    inside = outlines[kind % 5, torch.arange(rows)]
    frequency = _uniform(generator, rows, 8.0, 30.0)
    stripes = 0.25 * torch.sin(frequency * a + _uniform(generator, rows, 0.0, 6.3))
    shading = _uniform(generator, rows, -0.4, 0.4) * b / radius.clamp_min(0.05)
    return inside, torch.where((kind >= 5).view(-1, 1, 1), stripes, 0.5 * shading)


def _strokes(kinds: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """One to three curves; the kind says how many and how strongly the first one bends."""
    rows = len(kinds)
    y, x = _grid(shape)
    image = torch.zeros(rows, *shape[1:])
    width = _uniform(generator, rows, 0.025, 0.06)
    for stroke in range(3):
        drawn = (kinds % 3 >= stroke).view(-1, 1, 1)
        heading = _uniform(generator, rows, 0.0, 2 * math.pi)
        bend = _uniform(generator, rows, -1.5, 1.5)
        if stroke == 0:
            bend = (kinds.view(-1, 1, 1) - 4.5) * 1.2 + 0.2 * bend
        length = _uniform(generator, rows, 0.3, 1.1)
        cy, cx = (_uniform(generator, rows, 0.3, 0.7) for _ in range(2))
        near = torch.full((rows, *shape[1:]), torch.inf)
        steps = 24
        py, px = cy - length / 3 * torch.sin(heading), cx - length / 3 * torch.cos(heading)
        for _ in range(steps):
            py = py + length / steps * torch.sin(heading)
            px = px + length / steps * torch.cos(heading)
            heading = heading + bend / steps
            near = torch.minimum(near, (y - py) ** 2 + (x - px) ** 2)
        ink = torch.sigmoid((width - near.sqrt()) * 2 * min(shape[1:]))
        image = torch.maximum(image, torch.where(drawn, ink, 0.0))
    return image[:, None]
