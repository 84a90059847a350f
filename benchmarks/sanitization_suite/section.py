"""The figures with a word about each, for the page of results; every number from stored runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from accuracy_suite.stored import recipe_of

from sanitization_suite.charts import by_epoch, charts, threshold_label, width_curve, width_curves
from sanitization_suite.runs import FIXED, LONG, MOVING, SHORT, Row, accuracy_at, by_width, stored
from tacit.method_sections import SanitizationRecipe
from tacit.methods.stopping import SlopeRule
from tacit.report import values
from tacit.report.axes import Points

_COMMAND = "`python benchmarks/sanitization_figures.py --jobs 2 --data-dir DATA`"
_NOTHING = f"The runs for these figures have not been made yet: {_COMMAND}."
_SOURCE = f"Made by {_COMMAND} from [sanitization-figures.json](sanitization-figures.json)."
STOPPING = "000/cifar-10-paper-short-stopping"
_PAPER = {
    "4": "The paper: after epoch 40 the ε that it claims goes on rising and accuracy hardly does.",
    "8": "The paper: the larger t is, the faster C grows, and the noise with it.",
    "11": "The paper: accuracy rises with n up to 40–60 and falls beyond, on both datasets.",
    "13": (
        "The paper: a moving C is ahead of a fixed one at every width shown, by less as n grows;"
        " at n = 100 accuracy drops to 10 %."
    ),
    "14": "The paper: t from 0.05 to 0.1 is best; at t = 0.2 accuracy falls to 51.5 % at epoch 50"
    " and sharply by epoch 100.",
}


def section(folder: Path) -> str:
    """Markdown: the scale of the runs, then each figure that has been measured."""
    rows = stored(folder)
    parts = [part for chart in charts(rows) if (part := _part(chart.name, chart.title, rows))]
    return "\n\n".join([_scale(rows), *parts, _SOURCE]) if parts else _NOTHING


def _part(name: str, title: str, rows: Sequence[Row]) -> str:
    number = name.removeprefix("sanitization-figure")
    return f"**{title}.** {_PAPER[number]} {_OURS[number](rows)}\n\n![{title}]({name}.svg)"


def _scale(rows: Sequence[Row]) -> str:
    first = rows[0]
    held = int(first["evaluated_on"].split()[0].replace(",", ""))
    error = 100 * math.sqrt(0.25 / held)
    minutes = sum(row["training_seconds"] for row in rows) / 60
    return (
        f"One seed, {first['records']:,} records, batches of {first['batch_size']}, {SHORT} or"
        f" {LONG} epochs; accuracy on {first['evaluated_on']}, so up to {error:.1f} points (one"
        f" standard deviation) are chance. The paper trains on all records for 100 epochs."
        f" {len(rows)} runs in {minutes:.0f} minutes of one core. Every ε is as the paper computes"
        " it; none is a guarantee."
    )


def _ours4(rows: Sequence[Row]) -> str:
    row = FIXED.row(rows)
    assert row is not None
    claimed = dict(by_epoch(row, "claimed"))
    first, last = accuracy_at(row, LONG // 2), accuracy_at(row, LONG)
    return (
        f"Ours, CIFAR-10: {first:.1f} % after {LONG // 2} epochs at a claimed ε of"
        f" {values.proven(claimed[LONG // 2])}, {last:.1f} % after {LONG} at"
        f" {values.proven(claimed[LONG])}. {_first_flag(row)}"
    )


def _first_flag(row: Row) -> str:
    """Where the rule of the short stopping recipe would have ended a run."""
    method = recipe_of(STOPPING).method
    assert isinstance(method, SanitizationRecipe)
    flags = SlopeRule(method.window, method.slope).flags(row["spread"])
    if not flags:
        return f"The stopping rule of `{STOPPING}` raises no flag in it."
    gained = accuracy_at(row, LONG) - max(
        100 * share for epoch, share in row["evaluations"] if epoch <= flags[0]
    )
    return (
        f"The stopping rule of `{STOPPING}` raises its first flag after epoch {flags[0]}; from the"
        f" last evaluation by then to the end accuracy changes by {gained:+.1f} points."
    )


def _ours8(rows: Sequence[Row]) -> str:
    found = [(threshold_label(run), run.row(rows)) for run in MOVING]
    courses = [(label, by_epoch(row, "threshold")) for label, row in found if row is not None]
    said = (f"{label} from {c[0][1]:.2f} to {c[-1][1]:.2f}" for label, c in courses)
    return f"Ours, CIFAR-10, first and last epoch: {'; '.join(said)}."


def _ours11(rows: Sequence[Row]) -> str:
    names = {"mnist": "MNIST", "cifar-10": "CIFAR-10"}
    curves = {label: width_curve(by_width(name), rows) for name, label in names.items()}
    return f"Ours: {'; '.join(f'{label} {_best(p)}' for label, p in curves.items() if p)}."


def _ours13(rows: Sequence[Row]) -> str:
    curves = width_curves(rows)
    fixed, moving = dict(curves[0][1]), dict(curves[1][1])
    both = sorted(fixed.keys() & moving.keys())
    ahead = sum(moving[width] > fixed[width] for width in both)
    said = "; ".join(f"{label}: {_best(points)}" for label, points in curves if points)
    return f"Ours: {said}. At equal noise the moving C is ahead at {ahead} of {len(both)} widths."


def _ours14(rows: Sequence[Row]) -> str:
    found = [(run.follow, run.row(rows)) for run in MOVING]
    said = (
        f"t = {t:g} {accuracy_at(row, LONG // 2):.1f} and {accuracy_at(row, LONG):.1f} %"
        for t, row in found
        if row is not None
    )
    return f"Ours, after {LONG // 2} and {LONG} epochs: {'; '.join(said)}."


def _best(points: Points) -> str:
    width, height = max(points, key=lambda point: point[1])
    best, last = f"is best at n = {width:g} with {height:.1f} %", points[-1]
    if width == last[0]:
        return f"{best}, the largest"
    return f"{best}, {last[1]:.1f} % at n = {last[0]:g}"


_OURS: dict[str, Callable[[Sequence[Row]], str]] = {
    "4": _ours4,
    "8": _ours8,
    "11": _ours11,
    "13": _ours13,
    "14": _ours14,
}
