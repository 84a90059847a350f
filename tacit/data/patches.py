"""How images answer to patches of generated images: features that no person's data went into.

After Coates, Ng and Lee (2011), who take the patches from the images themselves. Here both the
patches and the statistics that whiten the answers come from generated images, so that a record's
features depend on that record alone.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.data.generated import GeneratedImages
from tacit.data.whitening import GENERATED, of_length
from tacit.errors import ArgumentError

_PER_IMAGE = 10
_DAMPING = 0.05
_CONTRAST = 1e-2
_FLOOR = 1e-5
_ROWS = 8
_SEED = 20_171_127


class PatchFeatures(nn.Module):
    """How strongly an image answers to each of a set of patches, either sign, by region.

    A fixed transform of one image: correlations with whitened patches, divided by the local
    contrast, cut off below `cut`, averaged over a grid. With `mirrored`, answers of the image and
    of its mirror image are averaged.
    """

    patches: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(
        self,
        channels: int,
        count: int,
        size: int,
        grid: int,
        stride: int = 1,
        cut: float = 0.25,
        mirrored: bool = False,
    ) -> None:
        super().__init__()
        self.grid, self.cut, self.size, self.stride = grid, cut, size, stride
        self.mirrored = mirrored
        width = 2 * count * grid * grid
        self.register_buffer("patches", torch.zeros(count, channels, size, size))
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return (self.answers(x) - self.centre) / self.scale

    def answers(self, x: Tensor) -> Tensor:
        """Features before they are centred."""
        return torch.cat([self._answers(rows) for rows in x.split(_ROWS)])

    def _answers(self, x: Tensor) -> Tensor:
        found = self._pooled(x, self.patches)
        if self.mirrored:
            # A patch meets the mirror image as the mirrored patch meets the image.
            found = (found + self._pooled(x, self.patches.flip(3)).flip(4)) / 2
        return found.flatten(1)

    def _pooled(self, x: Tensor, patches: Tensor) -> Tensor:
        """[images, signs, patches, grid, grid]."""
        height, width = ((side - self.size) // self.stride + 1 for side in x.shape[2:])
        cut = F.unfold(x, self.size, stride=self.stride).transpose(1, 2)
        spread = cut.var(2, correction=0, keepdim=True)
        found = (cut / torch.sqrt(spread + _CONTRAST)) @ patches.flatten(1).T
        beyond = F.softshrink(found, self.cut)
        regions = _regions(height, width, self.grid).to(x)
        signed, strength = regions @ beyond, regions @ beyond.abs_()
        both = torch.stack((strength + signed, strength - signed), 1) / 2
        return both.transpose(2, 3).reshape(len(x), 2, -1, self.grid, self.grid)

    def extra_repr(self) -> str:
        return f"{len(self.patches)} patches of {self.size}×{self.size}, {self.grid}×{self.grid}"


def _regions(height: int, width: int, grid: int) -> Tensor:
    """[grid², positions]: averages over the regions of a grid."""
    one_hot = torch.eye(height * width).view(-1, 1, height, width)
    return F.adaptive_avg_pool2d(one_hot, grid).flatten(1).T


def drawn_patches(pixels: Tensor, features: PatchFeatures) -> Tensor:
    """Patches drawn at random, whitened, of unit length; correlated with, they whiten too."""
    cut = F.unfold(pixels[: len(pixels) // 2], features.size)
    place = torch.randint(0, cut.shape[2], (len(cut), _PER_IMAGE))
    rows = torch.gather(cut, 2, place[:, None].expand(-1, cut.shape[1], -1))
    rows = rows.transpose(1, 2).reshape(-1, cut.shape[1])
    rows = rows - rows.mean(1, keepdim=True)
    rows = rows / torch.sqrt(rows.var(1, keepdim=True) + _CONTRAST)
    rows = rows[rows.norm(dim=1) > 1]
    values, axes = torch.linalg.eigh(rows.T @ rows / len(rows))
    whiten = axes @ torch.diag((values + _DAMPING).rsqrt()) @ axes.T
    chosen = rows[torch.randperm(len(rows))[: len(features.patches)]] @ whiten
    chosen = chosen / chosen.norm(dim=1, keepdim=True)
    patches = (chosen @ whiten).view(features.patches.shape)
    return torch.sub(patches, patches.mean((1, 2, 3), keepdim=True))


class WhitenedPatchFeatures:
    """A record's answers to patches, whitened to `width` directions, all of one length.

    Whitening makes directions of little variance count as much as others: a private gradient has
    the same noise in all, and would not see them otherwise.
    """

    def __init__(
        self, shape: tuple[int, ...], count: int, size: int, grid: int, width: int, mirrored: bool
    ) -> None:
        if len(shape) != 3 or min(shape[1:]) < size + grid - 1:
            raise ArgumentError(
                f"features is 'patches', but records have shape {shape}; it needs images of at"
                f" least {size + grid - 1} pixels a side for patches of {size} on a grid of {grid}"
            )
        self._shape, self._width = shape, min(width, 2 * count * grid * grid, GENERATED)
        self._features = PatchFeatures(shape[0], count, size, grid, mirrored=mirrored)
        self.key: dict[str, Any] = {
            "function": "patches 2",
            "shape": shape,
            "count": count,
            "size": size,
            "grid": grid,
            "width": self._width,
            "mirrored": mirrored,
        }
        mirror = ", averaged with those of its mirror image" if mirrored else ""
        self.described = (
            f"answers of each image to {count} patches of generated images{mirror}, whitened to"
            f" {self._width} directions by {GENERATED} generated images: a fixed function of one"
            " record"
        )

    def compute(self, rows: Tensor) -> Tensor:
        """[n, channels, height, width] in bytes or in [0, 1] → [n, width], all of one length."""
        scaled = rows.float() / 255 if rows.dtype == torch.uint8 else rows
        centre, directions = self._whitening
        found = (self._features.answers(scaled) - centre) @ directions
        return of_length(found)

    @cached_property
    def _whitening(self) -> tuple[Tensor, Tensor]:
        """Centre and scaled directions of the answers of generated images; fills the patches."""
        pixels = GeneratedImages.draw(GENERATED, self._shape, _SEED).pixels
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            self._features.patches.copy_(drawn_patches(pixels, self._features))
        answers = self._features.answers(pixels)
        centre = answers.mean(0)
        answers -= centre
        values, axes = torch.linalg.eigh(answers.T @ answers / len(answers))
        kept = values.flip(0)[: self._width].clamp_min(0) + _FLOOR * values.sum()
        return centre, axes.flip(1)[:, : self._width] * kept.rsqrt()
