"""Figures of a run with noised activations: spread with stopping flags, moving threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tacit.report import values
from tacit.report.axes import (
    BLUE,
    GREEN,
    VERMILLION,
    Points,
    drawable,
    new_axes,
    percent,
    small_axes,
    training_range,
)
from tacit.report.chart import Chart
from tacit.report.load import Run
from tacit.report.svg import INK, SOFT


def sanitization_charts(run: Run) -> list[Chart]:
    """What the run recorded of its sanitization layer, epoch by epoch."""
    trace = run.metrics.get("sanitization")
    if not isinstance(trace, Mapping):
        return []
    found = [_spread(trace), _threshold(trace), _claimed(run, trace), _flags_around(trace)]
    return [chart for chart in found if chart is not None]


def _by_epoch(trace: Mapping[str, Any], key: str) -> Points:
    heights = trace.get(key)
    if not isinstance(heights, list):
        return []
    found = [values.finite(height) for height in heights]
    return [(i + 1, math.nan if y is None else y) for i, y in enumerate(found)]


def _spread(trace: Mapping[str, Any]) -> Chart | None:
    points = _by_epoch(trace, "spread")
    if not drawable(points):
        return None
    figure, axes = new_axes("Epoch", "Standard deviation of noised vectors")
    axes.plot([x for x, _ in points], [y for _, y in points], color=BLUE, marker="o", markersize=4)
    slopes = trace.get("slopes") or []
    for first, start, last, end in slopes:
        axes.plot([first, last], [start, end], color=SOFT, linewidth=0.8, zorder=1)
    flags = [flag for flag in trace.get("flags") or [] if values.finite(flag) is not None]
    for flag in flags:
        axes.axvline(float(flag), color=VERMILLION, linewidth=1.2)
    training_range(axes, points)
    mode = trace.get("flag_mode")
    said = {
        "never": "No stopping rule was asked for.",
        "flag": f"{len(flags)} stopping flags (vertical lines) were noted; the run went on.",
        "stop": "A vertical line marks the flag that ended the run."
        if flags
        else "No stopping flag was raised.",
    }.get(str(mode), "")
    lines = " Thin lines are the slopes of the windows that the rule compares." if slopes else ""
    caption = f"Averaged over the vectors of each epoch. {said}{lines}"
    title = "Spread of sanitized activations"
    rows = [("epoch", "spread", "flag"), *((x, y, int(x in flags)) for x, y in points)]
    return Chart("spread", title, caption, figure, rows)


def _flags_around(trace: Mapping[str, Any]) -> Chart | None:
    """One small picture for every window and threshold around the chosen: the paper's Figure 6."""
    points, around = _by_epoch(trace, "spread"), trace.get("flags_around")
    if not drawable(points) or not isinstance(around, Mapping) or not around:
        return None
    figure, grid = small_axes(len(around), across="Epoch", up="Standard deviation")
    for axes, (rule, flags) in zip(grid, around.items(), strict=True):
        draw_flags(axes, points, rule, flags)
    caption = (
        "The same spread under windows of half, once and twice the length and under limits of a"
        " tenth, once and ten times the chosen one; vertical lines are flags, their number is in"
        " the title. A run that was stopped shows what came before."
    )
    rows = [
        ("rule", "flags"),
        *((rule, " ".join(map(str, flags))) for rule, flags in around.items()),
    ]
    title = "Flags of other windows and limits"
    return Chart("flags-around", title, caption, figure, rows, wide=True)


def draw_flags(axes: Axes, spread: Points, rule: str, flags: Sequence[int]) -> None:
    """The spread by epoch, and a vertical line at every flag of a rule."""
    axes.plot([x for x, _ in spread], [y for _, y in spread], color=BLUE, linewidth=1.1)
    for flag in flags:
        axes.axvline(flag, color=VERMILLION, linewidth=0.9)
    axes.set_title(f"{rule}: {len(flags)}", fontsize=8.5)


def _threshold(trace: Mapping[str, Any]) -> Chart | None:
    points, norms = _by_epoch(trace, "threshold"), _by_epoch(trace, "norm")
    if len({y for _, y in points if not math.isnan(y)}) < 2:
        return None
    figure, axes = new_axes("Epoch", "Clipping threshold C")
    axes.plot([x for x, _ in points], [y for _, y in points], color=GREEN, marker="o", markersize=4)
    axes.set_ylim(0, max(y for _, y in points if not math.isnan(y)) * 1.15)
    training_range(axes, points)
    caption = "C = t·‖W‖ after every epoch, W the weights below the sanitization layer."
    rows = [
        ("epoch", "threshold", "norm"),
        *((x, y, norm) for (x, y), (_, norm) in zip(points, norms, strict=False)),
    ]
    return Chart("threshold", "A threshold that follows the weights", caption, figure, rows)


def _claimed(run: Run, trace: Mapping[str, Any]) -> Chart | None:
    """Accuracy against what the paper would say was spent: the paper's Figure 4."""
    points = _by_epoch(trace, "claimed")
    accuracy = [(e.epoch, percent(e.accuracy)) for e in run.evaluations if e.epoch is not None]
    if not drawable(points) or not drawable(accuracy):
        return None
    figure, axes = new_axes("Epoch", "Accuracy (%)")
    axes.plot([x for x, _ in accuracy], [y for _, y in accuracy], color=GREEN, marker="o")
    axes.yaxis.set_major_locator(MaxNLocator(6))
    training_range(axes, points)
    other = axes.twinx()
    dashes = (0, (5, 3))
    other.plot([x for x, _ in points], [y for _, y in points], color=INK, linestyle=dashes)
    other.set_ylabel("Claimed ε (dashed)", color=SOFT)
    other.set_ylim(0, max(y for _, y in points) * 1.15)
    caption = (
        "Dashed: ε as the paper computes it. It is no guarantee: nothing limits what these weights"
        " reveal."
    )
    rows = [("epoch", "claimed"), *points]
    return Chart("claimed", "Accuracy and claimed ε", caption, figure, rows)
