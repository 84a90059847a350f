"""The figures, from stored runs alone. ε in them is always the claimed one, and says so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sanitization_suite.runs import (
    FIGURES,
    FIXED,
    FOLLOWED,
    FULL_FIXED,
    FULL_MOVING,
    LONG,
    MOVING,
    SHORT,
    FigureRun,
    Row,
    Trained,
    accuracy_at,
    by_width,
)
from tacit.methods.stopping import SlopeRule
from tacit.report.axes import (
    Points,
    accuracy_range,
    look,
    new_axes,
    small_axes,
    training_range,
)
from tacit.report.chart import Chart
from tacit.report.sanitization_plots import draw_flags
from tacit.report.svg import SOFT, style

CHANCE = 10.0
"""Accuracy of a guess among ten classes, in percent."""
_HALF_WIDTH, _HEIGHT = 3.9, 3.55
Curve = tuple[str, Points]
_Run = TypeVar("_Run", bound=Trained)
PAPER_RULE = SlopeRule(length=10, threshold=1.2e-4)
"""Algorithm 2 as the paper sets it for this network."""


def charts(rows: Sequence[Row]) -> list[Chart]:
    """Every figure of which at least one run is stored."""
    makers = (_figure4, _figure6, _figure8, _figure11, _figure13, _figure14)
    with style():
        found = [make(rows) for make in makers]
    return [chart for chart in found if chart is not None]


def _figure4(rows: Sequence[Row]) -> Chart | None:
    found = _stored((FULL_FIXED, FULL_MOVING), rows)
    if not found:
        return None
    kinds = {FULL_FIXED: "fixed C", FULL_MOVING: "moving C"}
    accuracy = [
        (kinds[run], [(epoch, 100 * share) for epoch, share in row["evaluations"]])
        for run, row in found
    ]
    claimed = by_epoch(found[0][1], "claimed")
    figure = Figure(figsize=(5.2, 5.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.set_ylabel("Accuracy (%)")
    below.set(xlabel="Epoch", ylabel="Claimed ε (no guarantee)")
    for kind, (label, points) in enumerate(accuracy):
        above.plot(*zip(*points, strict=True), label=label, **look(kind, kind).line(len(points)))
    above.legend(frameon=False, fontsize=9, loc="lower right")
    below.plot(*zip(*claimed, strict=True), **look(2).line(len(claimed)))
    accuracy_range(above, [point for _, points in accuracy for point in points])
    below.set_ylim(0, 1.15 * claimed[-1][1])
    training_range(below, claimed)
    _scale(figure, [row for _, row in found])
    return _chart("4", "Accuracy and claimed ε over the epochs, CIFAR-10", figure)


def _figure6(rows: Sequence[Row]) -> Chart | None:
    row = FULL_FIXED.row(rows)
    if row is None:
        return None
    spread = by_epoch(row, "spread")
    around = {rule: each.flags(row["spread"]) for rule, each in PAPER_RULE.around().items()}
    figure, grid = small_axes(len(around), across="Epoch", up="Standard deviation")
    for axes, (rule, flags) in zip(grid, around.items(), strict=True):
        draw_flags(axes, spread, rule, flags)
    _scale(figure, [row])
    return _chart("6", "Flags by window and threshold, CIFAR-10, fixed C", figure)


def _figure8(rows: Sequence[Row]) -> Chart | None:
    found = _stored((FIXED, *MOVING), rows)
    curves = [(threshold_label(run), by_epoch(row, "threshold")) for run, row in found]
    if not curves:
        return None
    figure, axes = new_axes("Epoch", "Clipping threshold C", extra_height=0.3)
    _draw(axes, curves)
    axes.set_ylim(bottom=0)
    training_range(axes, curves[0][1])
    _scale(figure, [row for _, row in found])
    return _chart("8", "Threshold C over the epochs by t, CIFAR-10", figure)


def _figure11(rows: Sequence[Row]) -> Chart | None:
    panels = {name: width_curve(by_width(name), rows) for name in ("mnist", "cifar-10")}
    shown = {name: points for name, points in panels.items() if points}
    if not shown:
        return None
    figure = Figure(figsize=(_HALF_WIDTH * len(shown), _HEIGHT), layout="constrained")
    for kind, (axes, (name, points)) in enumerate(
        zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True)
    ):
        axes.set(xlabel="Width n of the layer", ylabel="Accuracy (%)")
        axes.set_title({"mnist": "MNIST", "cifar-10": "CIFAR-10"}[name], fontsize=11)
        axes.plot(*zip(*points, strict=True), **look(kind).line(8))
        accuracy_range(axes, points)
        axes.set_xlim(left=0)
    _scale(figure, [row for _, row in _stored(FIGURES["11"], rows)], SHORT)
    return _chart("11", "Accuracy by width of the sanitization layer, fixed C", figure)


def _figure13(rows: Sequence[Row]) -> Chart | None:
    curves = [(label, points) for label, points in width_curves(rows) if points]
    if not curves:
        return None
    figure, axes = new_axes("Width n of the layer", "Accuracy (%)", extra_height=0.4)
    _draw(axes, curves)
    _above_chance(axes, curves)
    _scale(figure, [row for _, row in _stored(FIGURES["13"], rows)], SHORT)
    return _chart("13", "Accuracy by width with a fixed and a moving C, CIFAR-10", figure)


def _figure14(rows: Sequence[Row]) -> Chart | None:
    found = _stored(MOVING, rows)
    if not found:
        return None
    curves = [
        (f"after {epoch} epochs", [(run.follow, accuracy_at(row, epoch)) for run, row in found])
        for epoch in (LONG // 2, LONG)
    ]
    figure, axes = new_axes("t, where C = t·‖W‖", "Accuracy (%)", extra_height=0.3)
    _draw(axes, curves)
    _above_chance(axes, curves)
    axes.set_xticks([run.follow for run, _ in found])
    _scale(figure, [row for _, row in found])
    return _chart("14", "Accuracy by t, CIFAR-10", figure)


def width_curves(rows: Sequence[Row]) -> list[Curve]:
    """Accuracy by width on CIFAR-10: C fixed, moving, and moving with twice the noise."""
    settings = ((0.0, 1.0), (FOLLOWED, 1.0), (FOLLOWED, 2.0))
    return [
        (
            f"{threshold_label(FigureRun('cifar-10', follow=follow))}, noise {noise:g}",
            width_curve(by_width("cifar-10", follow, noise), rows),
        )
        for follow, noise in settings
    ]


def width_curve(runs: Iterable[FigureRun], rows: Sequence[Row]) -> Points:
    """Accuracy after the short time, for each width that was measured."""
    return [(run.width, accuracy_at(row, SHORT)) for run, row in _stored(runs, rows)]


def by_epoch(row: Row, key: str) -> Points:
    """What a run noted at the end of each epoch."""
    return [(index + 1, float(value)) for index, value in enumerate(row[key])]


def threshold_label(run: FigureRun) -> str:
    """How a run's threshold is chosen."""
    return f"C = {run.follow:g}·‖W‖" if run.follow else "fixed C"


def _stored(runs: Iterable[_Run], rows: Sequence[Row]) -> list[tuple[_Run, Row]]:
    pairs = ((run, run.row(rows)) for run in runs)
    return [(run, row) for run, row in pairs if row is not None]


def _draw(axes: Axes, curves: Sequence[Curve]) -> None:
    """Curves told apart by colour, marker and dashes."""
    for kind, (label, points) in enumerate(curves):
        axes.plot(*zip(*points, strict=True), label=label, **look(kind, kind).line(8))
    axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def _above_chance(axes: Axes, curves: Sequence[Curve]) -> None:
    """Down to what guessing gives, which is marked."""
    accuracy_range(axes, [point for _, points in curves for point in points] + [(0, CHANCE)])
    axes.axhline(CHANCE, color=SOFT, linewidth=1, linestyle=(0, (1, 2)))
    beside = axes.get_yaxis_transform()
    axes.text(0.99, CHANCE, "guessing", transform=beside, ha="right", va="bottom", color=SOFT)
    axes.set_xlim(left=0)


def _scale(figure: Figure, rows: Sequence[Row], epochs: int = 0) -> None:
    """The scale of the runs, on the figure itself."""
    records = "/".join(dict.fromkeys(f"{row['records']:,}" for row in rows))
    length = epochs or max(len(row["threshold"]) for row in rows)
    size = rows[0]["batch_size"]
    words = f"{records} records, batch {size}, {length} epochs; no guarantee"
    figure.suptitle(words, fontsize=9, color=SOFT)


def _chart(number: str, title: str, figure: Figure) -> Chart:
    return Chart(f"sanitization-figure{number}", f"Figure {number}: {title}", "", figure)
