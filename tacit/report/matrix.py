"""The confusion matrix as a figure."""

from __future__ import annotations

import math

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from tacit.report.chart import Chart
from tacit.report.load import Confusion
from tacit.report.svg import GRID, INK

Array = NDArray[np.float64]

_WIDE_FROM = 13  # from here on the counts need the full width of the page
_NUMBERED = 20  # with more classes the cells are too small for counts and names
_MAP = "GnBu"  # light to dark in even steps, safe for every colour vision


def confusion_chart(confusion: Confusion, name: str, title: str, measured: str) -> Chart:
    """The matrix with its caption and its counts."""
    shown = "colour is the share of the true class"
    classes = len(confusion.names)
    if classes <= _NUMBERED:
        shown = f"numbers are records, {shown}"
    return Chart(
        name,
        title,
        f"Each row is one true class: {shown}. {measured}".rstrip(),
        confusion_matrix(confusion),
        rows=[
            ["true class", *(f"predicted {column}" for column in confusion.names)],
            *([true, *row] for true, row in zip(confusion.names, confusion.counts, strict=True)),
        ],
        wide=_WIDE_FROM <= classes <= _NUMBERED,
        cropped=True,
    )


def confusion_matrix(confusion: Confusion) -> Figure:
    """True classes down, predicted classes across; each row coloured by its own shares."""
    counts = np.array(confusion.counts, dtype=np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    classes = len(confusion.names)
    side = 8.6 if _WIDE_FROM <= classes <= _NUMBERED else 5.6
    figure = Figure(figsize=(side, side * 0.88), layout="constrained")
    axes = figure.subplots()
    axes.grid(visible=False)
    image = axes.imshow(shares, cmap=_MAP, vmin=0, vmax=1, interpolation="none")
    axes.spines[:].set_visible(False)
    axes.set_xlabel("Predicted class")
    axes.set_ylabel("True class")
    if classes <= _NUMBERED:
        names = [name if len(name) <= 16 else name[:15] + "…" for name in confusion.names]
        slanted = classes * max(map(len, names)) > 44
        axes.set_xticks(range(classes), names, rotation=45 if slanted else 0)
        if slanted:
            for label in axes.get_xticklabels():
                label.set(horizontalalignment="right", rotation_mode="anchor")
        axes.set_yticks(range(classes), names)
        axes.set_xticks(np.arange(0.5, classes - 1), minor=True)
        axes.set_yticks(np.arange(0.5, classes - 1), minor=True)
        axes.grid(which="minor", color="white", linewidth=1.2)
    else:
        axes.set_xlabel("Predicted class (number, from 0)")
        axes.set_ylabel("True class (number, from 0)")
    axes.tick_params(which="both", length=0)
    bar = figure.colorbar(image, ax=axes, shrink=0.7, aspect=28, pad=0.02)
    bar.outline.set_edgecolor(GRID)
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    bar.set_label("Share of the true class")
    if classes <= _NUMBERED:
        figure.draw_without_rendering()
        cell = axes.get_window_extent().width * 72 / figure.dpi / classes
        _counts(axes, counts, shares, cell)
    return figure


def _counts(axes: Axes, counts: Array, shares: Array, cell: float) -> None:
    """Write each count into its cell of so many points, dark on light and light on dark."""
    digits = len(f"{counts.max():.0f}")
    size = min(13.0, cell / (0.72 * max(digits, 3)))
    colours = matplotlib.colormaps[_MAP]
    for (row, column), count in np.ndenumerate(counts):
        red, green, blue, _ = colours(shares[row, column])
        dark = math.sqrt(0.299 * red**2 + 0.587 * green**2 + 0.114 * blue**2) < 0.6
        axes.text(
            column,
            row,
            f"{count:.0f}",
            horizontalalignment="center",
            verticalalignment="center_baseline",
            fontsize=size,
            color="white" if dark else INK,
        )
