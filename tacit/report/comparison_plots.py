"""The figures of a comparison. Runs that cannot be compared never share the axis they differ on."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tacit.report import values
from tacit.report.axes import (
    Look,
    Points,
    accuracy_range,
    look,
    new_axes,
    percent,
    training_range,
)
from tacit.report.chart import Chart
from tacit.report.curves import Moment, accuracy_curve, epsilon_curve
from tacit.report.groups import Group, Promise, apart
from tacit.report.matrix import confusion_chart
from tacit.report.svg import style

_ROW = 0.21  # height of a line of the legend, in inches
_WRAPPED = 52
_NO_GUARANTEE = "no privacy guarantee, so at no ε"
_BARS = (
    "Points are means over the runs of a group, bars one standard deviation either way, small dots "
    "the single runs."
)


@dataclass(frozen=True)
class _Kind:
    """One of the values of ε that accuracy is drawn against."""

    name: str
    title: str
    axis: str
    caption: str
    epsilon: Callable[[Group], float | None]
    under: Callable[[Promise], str]


_PROVEN = _Kind(
    "accuracy-proven-epsilon",
    "Accuracy against proven ε",
    "Proven ε",
    "Every ε in this figure is proven.",
    lambda group: group.proven,
    str,
)
_CLAIMED = _Kind(
    "accuracy-claimed-epsilon",
    "Accuracy against claimed ε, which is no guarantee",
    "Claimed ε, as the paper computes it",
    "Every ε in this figure is a paper's own arithmetic for these settings, not what is proven, "
    "under the relation that the paper has in mind; do not hold it against the figure on proven ε.",
    lambda group: group.claimed,
    lambda promise: f"δ = {values.delta(promise.delta)}",
)


def comparison_charts(groups: Sequence[Group]) -> list[Chart]:
    """All figures about ε, accuracy, epochs and time that the runs have the data for."""
    with style():
        return [
            *_accuracy_by_epsilon(groups, _PROVEN),
            *_accuracy_by_epsilon(groups, _CLAIMED),
            *_epsilon_by_epoch(groups),
            *_accuracy_over(groups, "epochs", "Epoch", lambda moment: moment.epoch),
            *_accuracy_over(groups, "time", "Training time", lambda moment: moment.seconds),
        ]


def confusion_charts(groups: Sequence[Group]) -> list[Chart]:
    """One matrix per group, its counts added up over the runs."""
    found = []
    with style():
        for number, group in enumerate(groups, start=1):
            confusion = group.confusion()
            if confusion is not None:
                runs = len(group.members)
                summed = f"Added up over {runs} runs. " if runs > 1 else ""
                measured = f"{summed}Measured on: {group.evaluated_on}."
                found.append(
                    confusion_chart(confusion, f"confusion-{number}", group.label, measured)
                )
    return found


def _accuracy_by_epsilon(groups: Sequence[Group], kind: _Kind) -> list[Chart]:
    drawn = [g for g in groups if kind.epsilon(g) is not None and g.accuracies]
    private = [(group, group.promise) for group in drawn if group.promise]
    cells = apart(private, lambda pair: (_place(pair[0]), pair[1]))
    found = []
    for number, ((place, promise), pairs) in enumerate(cells, start=1):
        cell = [group for group, _ in pairs]
        open_ones = [g for g in groups if not g.promise and g.accuracies and _place(g) == place]
        name = kind.name if len(cells) == 1 else f"{kind.name}-{number}"
        series = apart(cell, lambda group: group.series)
        figure, axes = new_axes(
            f"{kind.axis}\n({kind.under(promise)})",
            "Accuracy (%)",
            _height([*(_name(members) for _, members in series), *map(_open_name, open_ones)]),
        )
        heights: Points = []
        for index, members in series:
            heights += _series(axes, members, kind, look(index))
        for group in open_ones:
            heights += _open(axes, group)
        accuracy_range(axes, heights)
        axes.set_xlim(0, max(kind.epsilon(g) or 0.0 for g in cell) * 1.08 or 1)
        _legend(figure, axes)
        caption = f"{kind.caption} {_BARS} Measured on: {place[1]}."
        title = kind.title if len(cells) == 1 else f"{kind.title}: {place[0]}, {promise}"
        rows = _epsilon_rows([*cell, *open_ones], kind)
        found.append(Chart(name, title, caption, figure, rows))
    return found


def _series(axes: Axes, groups: Sequence[Group], kind: _Kind, drawn: Look) -> Points:
    xs = [kind.epsilon(group) or 0.0 for group in groups]
    ys = [percent(group.accuracy) for group in groups]
    bars = [percent(group.spread or 0.0) for group in groups]
    style = drawn.line(1) | {"markersize": 7}
    axes.errorbar(
        xs, ys, yerr=bars, capsize=3, elinewidth=1.2, label=_wrapped(_name(groups)), **style
    )
    single = [
        (x, percent(accuracy))
        for x, group in zip(xs, groups, strict=True)
        for accuracy in group.accuracies
    ]
    axes.plot(*zip(*single, strict=True), ".", color=drawn.colour, alpha=0.5, markersize=4)
    return [*single, *((x, y + b) for x, y, b in zip(xs, ys, bars, strict=True))]


def _open(axes: Axes, group: Group) -> Points:
    height = percent(group.accuracy)
    colour, label = look(group.series).colour, _wrapped(_open_name(group))
    axes.axhline(height, color=colour, linestyle=(0, (1, 2)), linewidth=1.6, label=label)
    return [(0.0, height)]


def _epsilon_by_epoch(groups: Sequence[Group]) -> list[Chart]:
    curves = {group.label: epsilon_curve(group) for group in groups if group.promise}
    drawn = [group for group in groups if curves.get(group.label)]
    cells = apart(drawn, lambda group: group.promise)
    found = []
    for number, (promise, cell) in enumerate(cells, start=1):
        name = "epsilon-epochs" if len(cells) == 1 else f"epsilon-epochs-{number}"
        figure, axes = new_axes(
            "Epoch", f"Proven ε\n({promise})", _height(group.label for group in cell)
        )
        for group in cell:
            points = curves[group.label]
            axes.plot(
                *zip(*points, strict=True), label=_wrapped(group.label), **_look(group, groups, 24)
            )
        training_range(axes, [point for group in cell for point in curves[group.label]])
        axes.set_ylim(bottom=0)
        _legend(figure, axes)
        rows: list[Sequence[object]] = [("group", "epoch", "proven epsilon")]
        rows += [(group.label, *point) for group in cell for point in curves[group.label]]
        title = "Proven ε against epochs"
        title = title if len(cells) == 1 else f"{title}: {promise}"
        caption = "What is proven for the weights after each part of the training."
        found.append(Chart(name, title, caption, figure, rows))
    return found


def _accuracy_over(
    groups: Sequence[Group], name: str, axis: str, place: Callable[[Moment], float | None]
) -> list[Chart]:
    curves = {
        group.label: [moment for moment in accuracy_curve(group) if place(moment) is not None]
        for group in groups
    }
    drawn = [group for group in groups if curves[group.label]]
    cells = apart(drawn, _place)
    found = []
    for number, (where, cell) in enumerate(cells, start=1):
        unit, label = _unit(axis, (place(m) for group in cell for m in curves[group.label]))
        figure, axes = new_axes(label, "Accuracy (%)", _height(group.label for group in cell))
        points: Points = []
        for group in cell:
            moments = curves[group.label]
            xs = [(place(moment) or 0.0) / unit for moment in moments]
            ys = [percent(moment.accuracy) for moment in moments]
            around = [percent(moment.spread or 0.0) for moment in moments]
            keywords = _look(group, groups, len(xs))
            axes.plot(xs, ys, label=_wrapped(group.label), **keywords)
            if any(around):
                low = [y - b for y, b in zip(ys, around, strict=True)]
                high = [y + b for y, b in zip(ys, around, strict=True)]
                axes.fill_between(xs, low, high, color=keywords["color"], alpha=0.15, linewidth=0)
                points += [*zip(xs, low, strict=True), *zip(xs, high, strict=True)]
            points += zip(xs, ys, strict=True)
        training_range(axes, points)
        accuracy_range(axes, points)
        _legend(figure, axes)
        title = f"Accuracy against {name}"
        title = title if len(cells) == 1 else f"{title}: {where[0]}"
        caption = "Means over the runs of a group; bands are one standard deviation either way."
        caption += " As each run recorded it on its own machine." if name == "time" else ""
        kind = f"accuracy-{name}" if len(cells) == 1 else f"accuracy-{name}-{number}"
        full = f"{caption} Measured on: {where[1]}."
        found.append(Chart(kind, title, full, figure, _moment_rows(cell, curves)))
    return found


def _epsilon_rows(groups: Sequence[Group], kind: _Kind) -> list[Sequence[object]]:
    head = ("group", f"{kind.name.split('-')[1]} epsilon", "runs", "accuracy mean", "accuracy sd")
    rows: list[Sequence[object]] = [head]
    for group in groups:
        epsilon = kind.epsilon(group) if group.promise else None
        rows.append((group.label, epsilon, len(group.accuracies), group.accuracy, group.spread))
    return rows


def _moment_rows(
    groups: Sequence[Group], curves: dict[str, list[Moment]]
) -> list[Sequence[object]]:
    head = ("group", "step", "epoch", "seconds", "runs", "accuracy mean", "accuracy sd")
    rows: list[Sequence[object]] = [head]
    for group in groups:
        rows += [
            (group.label, m.step, m.epoch, m.seconds, m.runs, m.accuracy, m.spread)
            for m in curves[group.label]
        ]
    return rows


def _place(group: Group) -> tuple[str, str]:
    return group.data, group.evaluated_on


def _look(group: Group, groups: Sequence[Group], points: int) -> dict[str, Any]:
    """Series by colour, budgets by dashes; a series that is alone has its budgets by colour."""
    alone = len({g.series for g in groups}) == 1
    chosen = look(group.rank) if alone else look(group.series, group.rank)
    return chosen.line(points)


def _unit(axis: str, seconds: Iterable[float | None]) -> tuple[float, str]:
    if axis == "Epoch":
        return 1.0, axis
    longest = max((s for s in seconds if s is not None), default=0.0)
    for size, name in ((3600.0, "hours"), (60.0, "minutes")):
        if longest >= 3 * size:
            return size, f"{axis} ({name})"
    return 1.0, f"{axis} (seconds)"


def _name(series: Sequence[Group]) -> str:
    return series[0].label if len(series) == 1 else series[0].series_label


def _open_name(group: Group) -> str:
    return f"{group.label}: {_NO_GUARANTEE}"


def _wrapped(label: str) -> str:
    return textwrap.fill(label, _WRAPPED)


def _height(labels: Iterable[str]) -> float:
    """Room for a legend of these labels, in inches."""
    return _ROW * (1 + sum(1 + _wrapped(label).count("\n") for label in labels))


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: _NO_GUARANTEE in labels[i].replace("\n", " "))
    figure.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="outside lower left",
        frameon=False,
        handlelength=3.2,
        fontsize=10,
    )
