"""Clipping rules: from per-record gradient norms to factors, and the bound that follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tacit.errors import ArgumentError


@dataclass(frozen=True)
class Flat:
    """Scale each record's whole gradient to norm at most `clip` (Abadi et al. 2016)."""

    clip: float

    def __post_init__(self) -> None:
        _check_clip(self.clip)

    @property
    def bounds(self) -> tuple[float, ...]:
        return (self.clip,)

    @property
    def shares(self) -> tuple[float, ...]:
        return (1.0,)

    def grouping(self, names: Sequence[str]) -> Sequence[int]:
        return [0] * len(names)

    def factors(self, norms: Tensor) -> Tensor:
        return (self.clip / norms.clamp_min(1e-30)).clamp_max(1.0)


@dataclass(frozen=True)
class Automatic(Flat):
    """Normalise each record's gradient: g·clip/(‖g‖ + stabiliser) (Bu et al. 2023)."""

    stabiliser: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.stabiliser >= 0 and math.isfinite(self.stabiliser)):
            raise ArgumentError(f"stabiliser is {self.stabiliser}; it must not be negative")

    def factors(self, norms: Tensor) -> Tensor:
        return self.clip / (norms + self.stabiliser).clamp_min(1e-30)


def _check_clip(clip: float) -> None:
    if not (clip > 0 and math.isfinite(clip)):
        raise ArgumentError(f"clip is {clip}; it must be a positive finite number")
