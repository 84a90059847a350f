"""Evening out features by vectors that no person's data went into.

Private gradients have the same noise in every direction. Where features vary much in a few
directions, those take up the clip norm and the others are lost in the noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GENERATED = 6000
"""Generated images by which features are whitened."""
LENGTH = 10.0
"""Of every vector: well above one, so that a bias takes little of a gradient's norm."""
_DEPENDENT = 1e-6


@dataclass(frozen=True)
class Whitening:
    """Shortens directions in which public vectors vary much; a fixed function of one vector.

    Of a direction with variance v, (1 + v / least)^(-power / 2) is left. Directions are only
    shortened, never turned, so that another machine's eigenvectors make no difference.
    """

    centre: Tensor
    directions: Tensor
    taken: Tensor

    @classmethod
    def by(cls, public: Tensor, power: float, least: float = 1e-4) -> Whitening:
        """From public vectors [n, width]; `least` is a part of all their variance."""
        centre = public.mean(0)
        rows = (public - centre) / len(public) ** 0.5
        wide = rows.shape[1] > rows.shape[0]
        values, axes = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
        kept = values > _DEPENDENT * values[-1]
        values, axes = values[kept], axes[:, kept]
        directions = rows.T @ axes * values.rsqrt() if wide else axes
        left = (1 + values / (least * values.sum())).pow(-power / 2)
        return cls(centre, directions, 1 - left)

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, width] → [n, width], each of the same length."""
        centred = rows - self.centre
        found = centred - ((centred @ self.directions) * self.taken) @ self.directions.T
        return of_length(found)


def of_length(rows: Tensor) -> Tensor:
    """Every row as long as `LENGTH`; a row of nothing stays so."""
    return torch.div(rows, rows.norm(dim=1, keepdim=True).clamp_min(1e-6)).mul_(LENGTH)
