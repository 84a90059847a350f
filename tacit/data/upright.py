"""Handwriting set upright: slant and position of one image, taken out by its own moments."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_STEEPEST = 1.0


def upright(images: Tensor) -> Tensor:
    """Images of strokes on an empty ground, [n, channels, height, width], moved and sheared.

    The centre of mass comes to the middle, and columns are shifted by row until height and
    sideways place are uncorrelated. Each image is changed by what is in itself alone; an empty one
    stays as it is.
    """
    rows, columns = _axes(images)
    ink = images.mean(1)
    total = ink.sum((1, 2), keepdim=True)
    weight = ink / total.clamp_min(1e-6)
    filled = (total > 0).to(images)
    middle_row = (weight * rows).sum((1, 2), keepdim=True)
    middle_column = (weight * columns).sum((1, 2), keepdim=True)
    down, across = rows - middle_row, columns - middle_column
    spread = (weight * down * down).sum((1, 2), keepdim=True)
    slant = (weight * down * across).sum((1, 2), keepdim=True) / spread.clamp_min(1e-6)
    slant = slant.clamp(-_STEEPEST, _STEEPEST)
    from_column = columns + filled * (middle_column + slant * rows)
    from_row = rows + filled * middle_row
    height, width = images.shape[2:]
    places = torch.stack((2 * from_column / (width - 1), 2 * from_row / (height - 1)), 3)
    return F.grid_sample(images, places, align_corners=True)


def _axes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns, counted from the middle of the image."""
    height, width = images.shape[2:]
    rows = torch.arange(height).to(images).view(1, -1, 1) - (height - 1) / 2
    columns = torch.arange(width).to(images).view(1, 1, -1) - (width - 1) / 2
    return rows.expand(1, height, width), columns.expand(1, height, width)
