"""Early stopping by the spread of sanitized activations (000, Algorithms 2 and 4).

When every activation is clipped, the spread of what is released is that of the noise alone: it
stands still, or follows a moving threshold in a straight line. Either raises a flag. The rules see
released values only, and so cost nothing where those are private; stopping early saves time, not
guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import numpy as np

Line = tuple[int, float, int, float]
"""First epoch and height, last epoch and height."""

_LIMITS = (0.1, 1.0, 10.0)


class StoppingRule(Protocol):
    """Which epochs raise a flag."""

    def flags(self, spread: Sequence[float]) -> list[int]:
        """Epochs, counted from 1, at whose end a flag goes up, given the spread of each so far."""
        ...

    def lines(self, spread: Sequence[float]) -> list[Line]:
        """The line of every window whose slope is looked at."""
        ...

    def around(self) -> Mapping[str, StoppingRule]:
        """The same rule with windows and limits around its own, by what these are."""
        ...


@dataclass(frozen=True)
class SlopeRule:
    """Algorithm 2: the line from the window's first to its last epoch is nearly level.

    The paper compares the slope itself with T_s, so that any decline would raise a flag; its text
    asks for a slope near zero, and that is what is compared here. After a flag a whole window
    passes before the next.

    >>> SlopeRule(length=2, threshold=0.1).flags([1.0, 2.0, 3.0, 3.1, 3.1])
    [5]
    """

    length: int
    threshold: float

    def flags(self, spread: Sequence[float]) -> list[int]:
        found: list[int] = []
        since = 0
        for epoch in range(self.length, len(spread)):
            slope = (spread[epoch] - spread[epoch - self.length]) / self.length
            if epoch - since >= self.length and abs(slope) <= self.threshold:
                found.append(epoch + 1)
                since = epoch
        return found

    def lines(self, spread: Sequence[float]) -> list[Line]:
        """From the first to the last epoch of every window."""
        return [
            (first + 1, spread[first], first + self.length + 1, spread[first + self.length])
            for first in range(len(spread) - self.length)
        ]

    def around(self) -> dict[str, SlopeRule]:
        """Windows of half, once and twice the length; thresholds from a tenth to ten times."""
        return {
            f"window {length}, slope {limit * self.threshold:.3g}": SlopeRule(
                length, limit * self.threshold
            )
            for length, limit in product(_lengths(self.length, 1), _LIMITS)
        }


@dataclass(frozen=True)
class TrendRule:
    """Algorithm 4: lines fitted to two overlapping windows have nearly the same slope.

    >>> TrendRule(length=3, tolerance=0.01).flags([0.0, 3.0, 4.0, 5.0, 6.0])
    [5]
    """

    length: int
    tolerance: float

    def flags(self, spread: Sequence[float]) -> list[int]:
        slopes = [
            _slope(spread[start : start + self.length])
            for start in range(len(spread) - self.length + 1)
        ]
        return [
            index + self.length
            for index in range(1, len(slopes))
            if abs(slopes[index] - slopes[index - 1]) <= self.tolerance
        ]

    def lines(self, spread: Sequence[float]) -> list[Line]:
        """The fitted line of every window."""
        found: list[Line] = []
        for first in range(len(spread) - self.length + 1):
            window = spread[first : first + self.length]
            middle, rise = float(np.mean(window)), _slope(window) * (self.length - 1) / 2
            found.append((first + 1, middle - rise, first + self.length, middle + rise))
        return found

    def around(self) -> dict[str, TrendRule]:
        """Windows of half, once and twice the length; tolerances from a tenth to ten times."""
        return {
            f"window {length}, tolerance {limit * self.tolerance:.3g}": TrendRule(
                length, limit * self.tolerance
            )
            for length, limit in product(_lengths(self.length, 2), _LIMITS)
        }


def _lengths(length: int, least: int) -> list[int]:
    return sorted({max(length // 2, least), length, 2 * length})


def _slope(values: Sequence[float]) -> float:
    """Slope of the line of least squares."""
    if len(values) < 2:
        return 0.0
    x = np.arange(len(values), dtype=np.float64)
    return float(np.polyfit(x, np.asarray(values, dtype=np.float64), 1)[0])
