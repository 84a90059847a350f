"""The figures with a word about each, for the page of results; every number from stored runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from sanitization_suite.charts import (
    PAPER_RULE,
    by_epoch,
    charts,
    threshold_label,
    width_curve,
    width_curves,
)
from sanitization_suite.runs import (
    FULL_FIXED,
    FULL_MOVING,
    LONG,
    MOVING,
    SHORT,
    Row,
    accuracy_at,
    by_width,
    stored,
)
from tacit.report import values
from tacit.report.axes import Points

_COMMAND = "`python benchmarks/sanitization_figures.py --jobs 2 --data-dir DATA`"
_NOTHING = f"The runs for these figures have not been made yet: {_COMMAND}."
_SOURCE = f"Made by {_COMMAND} from [sanitization-figures.json](sanitization-figures.json)."
_PAPER = {
    "4": "The paper: after epoch 40 the ε that it claims goes on rising and accuracy hardly does.",
    "6": "The paper: short windows and large thresholds raise many flags, long windows and small"
    " thresholds raise few.",
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
    full = {FULL_FIXED.name, FULL_MOVING.name}
    parts = [row for row in rows if row["run"] not in full]
    if not parts:
        return "The paper's recipes as they are, scored on the test set; no ε here is a guarantee."
    first = parts[0]
    held = int(first["evaluated_on"].split()[0].replace(",", ""))
    error = 100 * math.sqrt(0.25 / held)
    minutes = sum(row["training_seconds"] for row in parts) / 60
    return (
        "One seed. Figures 4 and 6 are of the paper's recipes as they are, 100 epochs over all"
        f" records, scored on the test set; the others of {first['records']:,} records, batches of"
        f" {first['batch_size']}, {SHORT} or {LONG} epochs; accuracy on {first['evaluated_on']}, so"
        f" up to {error:.1f} points (one standard deviation) are chance:"
        f" {len(parts)} runs in {minutes:.0f} minutes of one core."
        " Every ε is as the paper computes it; none is a guarantee."
    )


def _ours4(rows: Sequence[Row]) -> str:
    kinds = ((FULL_FIXED, "C fixed"), (FULL_MOVING, "C moving"))
    found = [(label, row) for run, label in kinds if (row := run.row(rows)) is not None]
    claimed = dict(by_epoch(found[0][1], "claimed"))
    half, whole = len(claimed) // 2, len(claimed)
    courses = (
        f"{label} {accuracy_at(row, half):.1f} and {accuracy_at(row, whole):.1f} %"
        for label, row in found
    )
    return (
        f"Ours, CIFAR-10, after {half} and {whole} epochs, where {values.proven(claimed[half])} and"
        f" {values.proven(claimed[whole])} are claimed: {'; '.join(courses)}."
    )


def _ours6(rows: Sequence[Row]) -> str:
    row = FULL_FIXED.row(rows)
    assert row is not None
    flags = PAPER_RULE.flags(row["spread"])
    if not flags:
        return "Ours: the paper's window and threshold raise none."
    return (
        f"Ours: the paper's window and threshold, in the middle, raise {len(flags)}, the first"
        f" after epoch {flags[0]}, with {accuracy_at(row, flags[0]):.1f} % where the whole run ends"
        f" with {accuracy_at(row, len(row['spread'])):.1f} %."
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
    "6": _ours6,
    "8": _ours8,
    "11": _ours11,
    "13": _ours13,
    "14": _ours14,
}
