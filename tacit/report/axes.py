"""Axes, colours and ranges that the figures of all pages share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tacit.report.svg import INK

BLUE, GREEN, VERMILLION = "#0072B2", "#009E73", "#D55E00"  # Okabe and Ito
_COLOURS = (BLUE, VERMILLION, GREEN, "#CC79A7", "#E69F00", "#56B4E9", INK)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)), (0, (1, 1)))
_SIZE = (5.2, 3.55)

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Look:
    """Colour, marker and dashes of one line; no two that differ need colour to be told apart."""

    colour: str
    marker: str
    dashes: Any
    hollow: bool

    def line(self, points: int) -> dict[str, Any]:
        """Keywords for a line of so many points; long lines are marked here and there only."""
        return {
            "color": self.colour,
            "linestyle": self.dashes,
            "marker": self.marker,
            "markersize": 5,
            "markevery": max(1, points // 8),
            "markerfacecolor": "white" if self.hollow else self.colour,
        }


def look(kind: int, variant: int = 0) -> Look:
    """The look of a kind of line; variants of one kind share colour and marker."""
    return Look(
        colour=_COLOURS[kind % len(_COLOURS)],
        marker=_MARKERS[kind % len(_MARKERS)],
        dashes=_DASHES[(variant + kind // len(_COLOURS)) % len(_DASHES)],
        hollow=variant % 2 == 1,
    )


def new_axes(across: str, up: str, extra_height: float = 0.0) -> tuple[Figure, Axes]:
    """One pair of axes with both names written out."""
    figure = Figure(figsize=(_SIZE[0], _SIZE[1] + extra_height), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    return figure, axes


def small_axes(count: int, across: str, up: str) -> tuple[Figure, list[Axes]]:
    """A grid of small pairs of axes, three in a row, that share their ranges and names."""
    rows = -(-count // 3)
    figure = Figure(figsize=(2 * _SIZE[0], 0.8 + 1.5 * rows), layout="constrained")
    grid = list(figure.subplots(rows, 3, sharex=True, sharey=True, squeeze=False).flat)
    for axes in grid[:count]:
        axes.tick_params(labelsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4))
    for axes in grid[count:]:
        axes.remove()
    figure.supxlabel(across, fontsize=10)
    figure.supylabel(up, fontsize=10)
    return figure, grid[:count]


def drawable(points: Points) -> bool:
    """Whether at least one point has a height."""
    return any(not math.isnan(y) for _, y in points)


def percent(share: float | None) -> float:
    """A share as a percentage, not a number where it is not finite."""
    return 100 * share if share is not None and math.isfinite(share) else math.nan


def accuracy_range(axes: Axes, points: Points) -> None:
    """Heights from just below the lowest accuracy to just above the highest."""
    heights = [y for _, y in points if not math.isnan(y)]
    low, high = min(heights), max(heights)
    spread = max(high - low, 4.0) if high > low else 40.0
    axes.set_ylim(max(low - 0.12 * spread, 0), min(high + 0.16 * spread, max(101, high + 1)))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))


def training_range(axes: Axes, points: Points) -> None:
    """Widths from the start of training to just after its end."""
    edge = max(x for x, _ in points) * 1.04 or 1
    axes.set_xlim(0, edge)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=edge >= 4))
    axes.xaxis.set_major_formatter(FuncFormatter(thousands))


def thousands(x: float, _: int) -> str:
    """A tick with thousands separated."""
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"
