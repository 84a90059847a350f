"""Where contributions are added up, and what adds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from tacit.clipping.exact.grid import Grid, truncated


@dataclass(frozen=True)
class Target:
    """One parameter's part of the sum, the group of norms it is clipped in, and the grid."""

    total: Tensor
    group: int
    grid: Grid

    @property
    def exponent(self) -> int:
        """A record's contribution is at most 2 to this long."""
        return self.grid.exponents[self.group]

    @property
    def unit(self) -> float:
        """What one step of the grid is worth."""
        return self.grid.unit(self.group)

    def whole_units(self, gradients: Tensor, factors: Tensor) -> Tensor:
        """Rows times their factors, truncated to whole units of the grid."""
        unit = self.unit
        return truncated(gradients, factors[:, self.group] / unit).mul_(unit)


class PartialSum(ABC):
    """The gradients of some parameters of a micro-batch: first measured, then added."""

    @abstractmethod
    def measure(self, squares: Tensor) -> None:
        """Add each record's squared norms to `squares`, [records, groups]."""

    @abstractmethod
    def add(self, factors: Tensor) -> None:
        """Add all records' contributions by their factors, [records, groups], to the targets."""
