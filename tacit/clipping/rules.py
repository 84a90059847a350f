"""Clipping rules: from per-record gradient norms to factors, and the bound that follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.clipping.groups import Groups
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
        return norms.clamp_min(1e-30).reciprocal_().mul_(self.clip).clamp_max_(1.0)


@dataclass(frozen=True)
class Automatic(Flat):
    """Normalise each record's gradient: g·clip/(‖g‖ + stabiliser) (Bu et al. 2023).

    Gradients shorter than 1e-12, whose squares single precision may lose, are not made longer
    than `clip` either: they count as if they had that norm.
    """

    stabiliser: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.stabiliser >= 0 and math.isfinite(self.stabiliser)):
            raise ArgumentError(f"stabiliser is {self.stabiliser}; it must not be negative")

    def factors(self, norms: Tensor) -> Tensor:
        return self.clip / (norms + self.stabiliser).clamp_min(1e-12)


@dataclass(frozen=True)
class Layerwise:
    """Scale each group of layers to its own norm (McMahan et al. 2018; paper 003, section 3.2).

    Group h moves by at most bounds[h] and pays shares[h] of the cost: its noise is that of a
    release of its own with multiplier σ/√shares[h].
    """

    groups: Groups
    bounds: tuple[float, ...]
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.bounds) != len(self.groups):
            raise ArgumentError(
                f"thresholds has {len(self.bounds)} values for {len(self.groups)} groups of"
                " layers; give one for each"
            )
        for bound in self.bounds:
            _check_clip(bound)
        if not self.shares:
            object.__setattr__(self, "shares", (1 / len(self.groups),) * len(self.groups))
        whole = min(self.shares) > 0 and abs(math.fsum(self.shares) - 1) <= 1e-9
        if len(self.shares) != len(self.groups) or not whole:
            raise ArgumentError(
                f"shares is {self.shares}; give one positive share per group, adding up to one"
            )

    def grouping(self, names: Sequence[str]) -> Sequence[int]:
        return self.groups.numbers(names)

    def factors(self, norms: Tensor) -> Tensor:
        return (norms.new_tensor(self.bounds) / norms.clamp_min(1e-30)).clamp_max(1.0)


@dataclass(frozen=True)
class Multiplied:
    """Multiply each group, clip the whole, and divide again after the noise (paper 003, B.2).

    The multiplied gradient has norm at most `clip`, so the whole costs what flat clipping costs;
    noise on group h is divided by its multiplier.
    """

    groups: Groups
    clip: float
    multipliers: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_clip(self.clip)
        if len(self.multipliers) != len(self.groups):
            raise ArgumentError(
                f"multipliers has {len(self.multipliers)} values for {len(self.groups)} groups of"
                " layers; give one for each"
            )
        for each in self.multipliers:
            if not (each > 0 and math.isfinite(each)):
                raise ArgumentError(f"a multiplier is {each}; it must be positive and finite")

    @property
    def bounds(self) -> tuple[float, ...]:
        return tuple(self.clip / each for each in self.multipliers)

    @property
    def shares(self) -> tuple[float, ...]:
        return (1.0,) * len(self.groups)

    def grouping(self, names: Sequence[str]) -> Sequence[int]:
        return self.groups.numbers(names)

    def factors(self, norms: Tensor) -> Tensor:
        whole: Tensor = torch.linalg.vector_norm(
            norms * norms.new_tensor(self.multipliers), dim=1, keepdim=True
        )
        return (self.clip / whole.clamp_min(1e-30)).clamp_max(1.0).expand_as(norms)


def _check_clip(clip: float) -> None:
    if not (clip > 0 and math.isfinite(clip)):
        raise ArgumentError(f"clip is {clip}; it must be a positive finite number")
