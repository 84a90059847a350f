"""The figures of a run: accuracy and loss over training, the privacy spent, the confusion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tacit.report import values
from tacit.report.load import Evaluation, Run
from tacit.report.matrix import NUMBERED, WIDE_FROM, confusion_matrix
from tacit.report.svg import INK, SOFT, inline, style

BLUE, GREEN, VERMILLION = "#0072B2", "#009E73", "#D55E00"  # Okabe and Ito
_SIZE = (5.2, 3.55)
_MARKED = 40  # more points than this are drawn as a line alone

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """One figure ready for the page."""

    name: str
    title: str
    caption: str
    svg: str
    wide: bool = False


def charts(run: Run) -> list[Chart]:
    """Every figure the run has the data for, those on ε only where ε is proven."""
    found: list[Chart | None] = []
    with style():
        if run.guarantee is not None:
            found += [_accuracy_by_epsilon(run), _epsilon_by_step(run)]
        found += [_accuracy_by_epoch(run), _loss_by_epoch(run), _confusion(run)]
    return [chart for chart in found if chart is not None]


def _accuracy_by_epsilon(run: Run) -> Chart | None:
    points = [
        (e.epsilon, _percent(e.accuracy))
        for e in run.evaluations
        if e.epsilon is not None and math.isfinite(e.epsilon)
    ]
    if not _drawable(points):
        return None
    figure, axes = _axes("Privacy spent, proven ε", "Accuracy (%)")
    _line(axes, points, GREEN)
    _accuracy_range(axes, points)
    _last_label(axes, points, run.evaluations, GREEN)
    edge = max(x for x, _ in points)
    budget = _budget(run)
    if budget is not None:
        edge = max(edge, budget)
        axes.axvline(budget, color=INK, linestyle=(0, (5, 3)), linewidth=1.2)
        axes.annotate(
            f"budget ε = {values.proven(budget)}",
            (budget, 0.04),
            xycoords=("data", "axes fraction"),
            xytext=(-6, 0),
            textcoords="offset points",
            horizontalalignment="right",
        )
    axes.set_xlim(0, edge * 1.06 or 1)
    title = "Accuracy against proven ε"
    caption = (
        "The model at each evaluation, placed at the ε proven for the training so far"
        f"{_at_delta(run)}. {_evaluated_on(run)}{_gaps(points)}"
    )
    return Chart("accuracy-epsilon", title, caption, inline(figure, "accuracy-epsilon", title))


def _epsilon_by_step(run: Run) -> Chart | None:
    recorded = [(e.step, e.epsilon) for e in run.evaluations]
    points = run.epsilon_curve or [
        (step, epsilon) for step, epsilon in recorded if step is not None and epsilon is not None
    ]
    points = [(step, epsilon if math.isfinite(epsilon) else math.nan) for step, epsilon in points]
    if not _drawable(points):
        return None
    figure, axes = _axes("Training step", "Privacy spent, proven ε")
    _line(axes, points, BLUE)
    top = max(y for _, y in points if not math.isnan(y))
    budget = _budget(run)
    if budget is not None:
        top = max(top, budget)
        axes.axhline(budget, color=INK, linestyle=(0, (5, 3)), linewidth=1.2)
        axes.annotate(
            f"budget ε = {values.proven(budget)}",
            (0.02, budget),
            xycoords=("axes fraction", "data"),
            xytext=(0, 5),
            textcoords="offset points",
        )
    axes.set_ylim(0, top * 1.16 or 1)
    axes.set_xlim(0, max(x for x, _ in points) * 1.03 or 1)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
    _epoch_axis(axes, run.evaluations)
    title = "Privacy spent during training"
    caption = f"Proven ε after each step{_at_delta(run)}.{_gaps(points)}"
    return Chart("epsilon-steps", title, caption, inline(figure, "epsilon-steps", title))


def _accuracy_by_epoch(run: Run) -> Chart | None:
    name, unit = _progress(run.evaluations)
    points = _over_training(run.evaluations, name, [_percent(e.accuracy) for e in run.evaluations])
    if not _drawable(points):
        return None
    figure, axes = _axes(unit, "Accuracy (%)")
    _line(axes, points, GREEN)
    _accuracy_range(axes, points)
    _last_label(axes, points, run.evaluations, GREEN)
    _training_range(axes, points)
    title = "Accuracy during training"
    caption = f"{_evaluated_on(run)}{_gaps(points)}"
    return Chart("accuracy", title, caption, inline(figure, "accuracy", title))


def _loss_by_epoch(run: Run) -> Chart | None:
    name, unit = _progress(run.evaluations)
    losses = [e.loss if e.loss is not None else math.nan for e in run.evaluations]
    losses = [y if math.isfinite(y) else math.nan for y in losses]
    points = _over_training(run.evaluations, name, losses)
    if not _drawable(points):
        return None
    figure, axes = _axes(unit, "Loss")
    _line(axes, points, VERMILLION)
    heights = [y for _, y in points if not math.isnan(y)]
    if min(heights) >= 0:
        axes.set_ylim(0, max(heights) * 1.1 or 1)
    _training_range(axes, points)
    title = "Loss during training"
    caption = f"{_evaluated_on(run)}{_gaps(points)}"
    return Chart("loss", title, caption, inline(figure, "loss", title))


def _confusion(run: Run) -> Chart | None:
    if run.confusion is None:
        return None
    title = "Confusion matrix"
    shown = "colour is the share of the true class"
    if len(run.confusion.names) <= NUMBERED:
        shown = f"numbers are records, {shown}"
    caption = f"Each row is one true class: {shown}. {_evaluated_on(run)}"
    drawn = inline(confusion_matrix(run.confusion), "confusion", title, cropped=True)
    wide = WIDE_FROM <= len(run.confusion.names) <= NUMBERED
    return Chart("confusion", title, caption.rstrip(), drawn, wide)


def _axes(across: str, up: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    return figure, axes


def _line(axes: Axes, points: Points, colour: str) -> None:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    marker = "o" if len(points) <= _MARKED else ""
    axes.plot(xs, ys, color=colour, marker=marker, markersize=7 if len(points) < 3 else 4.5)


def _drawable(points: Points) -> bool:
    return any(not math.isnan(y) for _, y in points)


def _gaps(points: Points) -> str:
    missing = sum(math.isnan(y) for _, y in points)
    return f" {missing} of {len(points)} points had no finite value and are left out." * bool(
        missing
    )


def _percent(share: float | None) -> float:
    return 100 * share if share is not None and math.isfinite(share) else math.nan


def _accuracy_range(axes: Axes, points: Points) -> None:
    heights = [y for _, y in points if not math.isnan(y)]
    low, high = min(heights), max(heights)
    spread = max(high - low, 4.0) if high > low else 40.0
    axes.set_ylim(max(low - 0.12 * spread, 0), min(high + 0.16 * spread, max(101, high + 1)))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))


def _last_label(axes: Axes, points: Points, rows: Sequence[Evaluation], colour: str) -> None:
    x, y = points[-1]
    if math.isnan(y) or not rows:
        return
    axes.annotate(
        values.percent(rows[-1].accuracy),
        (x, y),
        xytext=(-7, 8),
        textcoords="offset points",
        horizontalalignment="right",
        color=colour,
        fontweight="bold",
    )


def _progress(rows: Sequence[Evaluation]) -> tuple[str, str]:
    if rows and all(e.epoch is not None and math.isfinite(e.epoch) for e in rows):
        return "epoch", "Epoch"
    return "step", "Training step"


def _over_training(rows: Sequence[Evaluation], name: str, heights: Sequence[float]) -> Points:
    found = []
    for row, height in zip(rows, heights, strict=True):
        x = row.epoch if name == "epoch" else row.step
        if x is not None and math.isfinite(x):
            found.append((x, height))
    return found


def _training_range(axes: Axes, points: Points) -> None:
    edge = max(x for x, _ in points) * 1.04 or 1
    axes.set_xlim(0, edge)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=edge >= 4))
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands))


def _thousands(x: float, _: int) -> str:
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"


def _epoch_axis(axes: Axes, rows: Sequence[Evaluation]) -> None:
    """Epochs along the top, if an evaluation tells how many steps one takes."""
    rates = [e.epoch / e.step for e in rows if e.epoch and e.step and e.epoch > 0 and e.step > 0]
    if not rates or not math.isfinite(rates[-1]):
        return
    rate = rates[-1]
    top = axes.secondary_xaxis(
        "top", functions=(lambda x: np.multiply(x, rate), lambda x: np.divide(x, rate))
    )
    top.set_xlabel("Epoch", color=SOFT)
    top.spines["top"].set_visible(False)
    top.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    top.xaxis.set_major_formatter(FuncFormatter(_thousands))
    top.tick_params(length=0, pad=2, labelcolor=SOFT)


def _budget(run: Run) -> float | None:
    """The proven ε, unless the curves were computed for another δ and cannot be compared."""
    return run.guarantee.epsilon if run.guarantee is not None and run.same_delta else None


def _at_delta(run: Run) -> str:
    delta = values.finite(run.metrics.get("delta"))
    if delta is None and run.guarantee is not None:
        delta = run.guarantee.delta
    said = "" if delta is None else f" at δ = {values.delta(delta)}"
    return said if run.same_delta else f"{said}, not the certificate's δ, so without its budget"


def _evaluated_on(run: Run) -> str:
    place = run.metrics.get("evaluated_on")
    return f"Measured on: {place}." if isinstance(place, str) and place else ""
