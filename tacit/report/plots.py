"""The figures of a run: accuracy and loss over training, the privacy spent, the confusion."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tacit.report import values
from tacit.report.axes import (
    BLUE,
    GREEN,
    VERMILLION,
    Points,
    accuracy_range,
    drawable,
    new_axes,
    percent,
    thousands,
    training_range,
)
from tacit.report.chart import Chart
from tacit.report.load import Evaluation, Run
from tacit.report.matrix import confusion_chart
from tacit.report.sanitization_plots import sanitization_charts
from tacit.report.svg import INK, SOFT, style
from tacit.report.tradeoff import trade_off

_MARKED = 40  # more points than this are drawn as a line alone


def charts(run: Run) -> list[Chart]:
    """Every figure the run has the data for, those on ε only where ε is proven."""
    found: list[Chart | None] = []
    with style():
        if run.guarantee is not None:
            found += [_accuracy_by_epsilon(run), _epsilon_by_step(run), trade_off(run)]
        found += [_accuracy_by_epoch(run), _loss_by_epoch(run), _confusion(run)]
        found += sanitization_charts(run)
    return [chart for chart in found if chart is not None]


def _accuracy_by_epsilon(run: Run) -> Chart | None:
    points = [
        (e.epsilon, percent(e.accuracy))
        for e in run.evaluations
        if e.epsilon is not None and math.isfinite(e.epsilon)
    ]
    if not drawable(points):
        return None
    figure, axes = new_axes("Privacy spent, proven ε", "Accuracy (%)")
    _line(axes, points, GREEN)
    accuracy_range(axes, points)
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
        f"{_at_delta(run)}. {evaluated_on(run)}{_gaps(points)}"
    )
    return Chart("accuracy-epsilon", title, caption, figure)


def _epsilon_by_step(run: Run) -> Chart | None:
    recorded = [(e.step, e.epsilon) for e in run.evaluations]
    points = run.epsilon_curve or [
        (step, epsilon) for step, epsilon in recorded if step is not None and epsilon is not None
    ]
    points = [(step, epsilon if math.isfinite(epsilon) else math.nan) for step, epsilon in points]
    if not drawable(points):
        return None
    figure, axes = new_axes("Training step", "Privacy spent, proven ε")
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
    axes.xaxis.set_major_formatter(FuncFormatter(thousands))
    _epoch_axis(axes, run.evaluations)
    title = "Privacy spent during training"
    caption = f"Proven ε at {len(points)} points of the training{_at_delta(run)}.{_gaps(points)}"
    return Chart("epsilon-steps", title, caption, figure)


def _accuracy_by_epoch(run: Run) -> Chart | None:
    name, unit = _progress(run.evaluations)
    points = _over_training(run.evaluations, name, [percent(e.accuracy) for e in run.evaluations])
    if not drawable(points):
        return None
    figure, axes = new_axes(unit, "Accuracy (%)")
    _line(axes, points, GREEN)
    accuracy_range(axes, points)
    _last_label(axes, points, run.evaluations, GREEN)
    training_range(axes, points)
    title = "Accuracy during training"
    caption = f"{evaluated_on(run)}{_gaps(points)}"
    return Chart("accuracy", title, caption, figure)


def _loss_by_epoch(run: Run) -> Chart | None:
    name, unit = _progress(run.evaluations)
    losses = [e.loss if e.loss is not None else math.nan for e in run.evaluations]
    losses = [y if math.isfinite(y) else math.nan for y in losses]
    points = _over_training(run.evaluations, name, losses)
    if not drawable(points):
        return None
    figure, axes = new_axes(unit, "Loss")
    _line(axes, points, VERMILLION)
    heights = [y for _, y in points if not math.isnan(y)]
    if min(heights) >= 0:
        axes.set_ylim(0, max(heights) * 1.1 or 1)
    training_range(axes, points)
    title = "Loss during training"
    caption = f"{evaluated_on(run)}{_gaps(points)}"
    return Chart("loss", title, caption, figure)


def _confusion(run: Run) -> Chart | None:
    if run.confusion is None:
        return None
    return confusion_chart(run.confusion, "confusion", "Confusion matrix", evaluated_on(run))


def _line(axes: Axes, points: Points, colour: str) -> None:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    marker = "o" if len(points) <= _MARKED else ""
    axes.plot(xs, ys, color=colour, marker=marker, markersize=7 if len(points) < 3 else 4.5)


def _gaps(points: Points) -> str:
    missing = sum(math.isnan(y) for _, y in points)
    return f" {missing} of {len(points)} points had no finite value and are left out." * bool(
        missing
    )


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
    top.xaxis.set_major_formatter(FuncFormatter(thousands))
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


def evaluated_on(run: Run) -> str:
    """A sentence for a caption: which records the model was measured on."""
    place = run.metrics.get("evaluated_on")
    return f"Measured on: {place}." if isinstance(place, str) and place else ""
