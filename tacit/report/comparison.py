"""compare.html: any set of runs side by side, on one page that needs nothing but itself."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.errors import RunError
from tacit.report import values
from tacit.report.chart import Chart
from tacit.report.comparison_plots import comparison_charts, confusion_charts
from tacit.report.comparison_table import as_json, columns, promises, warnings
from tacit.report.curves import Reached, levels, reached
from tacit.report.document import document, packaged, write_whole
from tacit.report.groups import Group, apart, differing
from tacit.report.labels import shown
from tacit.report.markup import (
    Cell,
    box,
    bullets,
    details,
    escape,
    paragraph,
    section,
    table,
    unbroken,
)

_FIGURE = re.compile(r"figures/[\w-]+\.(svg|csv)")


@dataclass(frozen=True)
class Written:
    """Where a comparison lies, and its numbers."""

    page: Path
    numbers: dict[str, Any]


def write_comparison(groups: Sequence[Group], notes: Sequence[str], out: Path) -> Written:
    """Write compare.html, compare.json and every figure as SVG and CSV into a directory.

    Figures that an earlier comparison left there and that this one lacks are removed.
    """
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot write to {str(out)!r} ({error.strerror}); choose another directory"
        ) from error
    every, matrices = comparison_charts(groups), confusion_charts(groups)
    charts = [chart for chart in every if chart.points > 1]
    alone = [chart.title for chart in every if chart.points < 2]
    files = {
        f"figures/{chart.name}.{kind}": text
        for chart in (*charts, *matrices)
        for kind, text in (("svg", chart.svg()), ("csv", chart.csv()))
    }
    numbers = {
        "groups": [as_json(group, groups) for group in groups],
        "warnings": warnings(groups),
        "notes": list(notes),
        "figures": list(files),
    }
    page = render(groups, notes, charts, matrices, alone)
    for name in _stale(out / "compare.json", files):
        (out / name).unlink(missing_ok=True)
    for name, text in files.items():
        write_whole(out / name, text)
    write_whole(out / "compare.json", json.dumps(numbers, indent=1, ensure_ascii=False) + "\n")
    write_whole(out / "compare.html", page)
    return Written(out / "compare.html", numbers)


def render(
    groups: Sequence[Group],
    notes: Sequence[str],
    charts: Sequence[Chart],
    matrices: Sequence[Chart],
    alone: Sequence[str],
) -> str:
    """The whole page as text; the same runs give the same page.

    `alone` names figures that are left out: they would have a single point, and nothing beside it.
    """
    runs = sum(len(group.members) for group in groups)
    counted = f"{_plural(len(groups), 'group')} of {_plural(runs, 'run')}"
    verified = (
        "The ledger of every run was checked, and its proven ε computed again from it. Accuracy "
        "and times are as the runs recorded them."
    )
    header = (
        f"<header>{paragraph('Comparison', 'kicker')}<h1>{escape(_title(groups))}</h1>"
        f"{paragraph(f'{counted}. {verified}', 'verdict plain')}</header>"
    )
    body = "\n".join(
        part
        for part in (
            box("warning", "note", "Before you compare", warnings(groups)),
            _results(groups, notes),
            _figures(charts, alone),
            _time_to_accuracy(groups),
            _side_by_side(matrices),
            _differences(groups),
            _runs(groups),
        )
        if part
    )
    footer = (
        "<footer><p>Made by tacit from the certificate, ledger, metrics and recipe of each run. "
        "Proven and claimed ε are rounded up, audited ε and accuracy down, spread up; of several "
        "runs the largest ε is shown. The figures folder beside this page has every figure as "
        "SVG and its numbers as CSV; compare.json has the table.</p></footer>"
    )
    title = f"{_title(groups)} · tacit comparison"
    return document(title, header, body, footer, packaged("comparison.js"))


def _results(groups: Sequence[Group], notes: Sequence[str]) -> str:
    used = columns(groups)
    others = used[1:]
    rows = [[_named(g), *(Cell(unbroken(c.text(g)), c.value(g)) for c in others)] for g in groups]
    words = [index for index, column in enumerate(used) if column.words]
    said = (
        "Proven ε is a limit that a proof backs: rely on it. Claimed ε is what a paper's own "
        "arithmetic gives. Audited ε is a lower bound from an attack. Runs that differ only in "
        "their seed are one group: mean ± one standard deviation."
    )
    found = promises(groups)
    said += f" Every proven ε here holds at {found[0]}." if len(found) == 1 else ""
    return section(
        "results",
        "Results",
        paragraph(said),
        table("Results", [c.title for c in used], rows, words=words, keys=[c.key for c in used]),
        bullets(notes, "") if notes else "",
    )


def _figures(charts: Sequence[Chart], alone: Sequence[str]) -> str:
    drawn = "".join(chart.markup() for chart in charts)
    said = f"Left out, because a single point would stand in it: {'; '.join(alone)}."
    empty = "No run has an evaluation, so there is nothing to draw."
    return section(
        "figures",
        "Figures",
        f'<div class="figures">{drawn}</div>' if drawn else "",
        paragraph(said, "quiet") if alone else "",
        paragraph(empty, "quiet") if not (charts or alone) else "",
    )


def _side_by_side(matrices: Sequence[Chart]) -> str:
    if not matrices:
        return ""
    drawn = "".join(chart.markup() for chart in matrices)
    return section("confusion", "Confusion matrices", f'<div class="figures">{drawn}</div>')


def _time_to_accuracy(groups: Sequence[Group]) -> str:
    """One table per set of records that accuracy was measured on."""
    tables = []
    cells = apart([g for g in groups if g.accuracies], lambda g: (g.data, g.evaluated_on))
    for (data, _), cell in cells:
        asked = levels(cell)
        if asked:
            head = ("Group", *(f"{values.short_percent(level)} accuracy" for level in asked))
            rows: list[tuple[str | Cell, ...]] = [
                (_named(g), *(_reached(reached(g, level)) for level in asked)) for g in cell
            ]
            name = "Steps and time to accuracy" + (f": {data}" if len(cells) > 1 else "")
            words = range(len(head))
            title = f"<h3>{escape(data)}</h3>" if len(cells) > 1 else ""
            tables.append(title + table(name, head, rows, words=words))
    if not tables:
        return ""
    said = (
        "From the start of training to the first evaluation at or above an accuracy; runs are "
        "evaluated only now and then, so the true moment lies between that evaluation and the "
        "one before. Means over the runs that got there."
    )
    return section("time-to-accuracy", "Steps and time to accuracy", paragraph(said), *tables)


def _reached(found: Reached) -> str:
    if not found.runs:
        return "not reached"
    some = f", {found.runs} of {found.of} runs" if found.runs < found.of else ""
    time = "" if found.seconds is None else f", {values.duration(found.seconds)}"
    return f"{values.count(found.step)} steps{time}{some}"


def _differences(groups: Sequence[Group]) -> str:
    first = [group.first for group in groups]
    keys = differing(first)
    facts = [key for key in first[0].facts() if len({str(m.facts()[key]) for m in first}) > 1]
    if not keys and not facts:
        same = "All settings are the same." if len(groups) > 1 else "There is only one group."
        return section("differences", "What differs", paragraph(same, "quiet"))
    head = ("Group", "Accuracy", *keys, *(fact.replace("_", " ") for fact in facts))
    rows: list[tuple[str | Cell, ...]] = [
        (
            _named(group),
            values.percent(group.accuracy),
            *(shown(group.first.settings.get(key)) for key in keys),
            *(shown(group.first.facts()[fact]) for fact in facts),
        )
        for group in groups
    ]
    said = "Every setting that is not the same in all groups; seeds and titles are left out."
    words = range(len(head))
    return section(
        "differences", "What differs", paragraph(said), table("What differs", head, rows, words)
    )


def _runs(groups: Sequence[Group]) -> str:
    head = ("Group", "Run directory", "Seed", "Accuracy", "ε proven", "Ledger ends with")
    rows = [
        (
            _named(group),
            str(member.path),
            "operating system" if member.seed is None else str(member.seed),
            values.percent(member.accuracy),
            values.proven(member.run.guarantee.epsilon) if member.run.guarantee else "∞",
            str(member.run.certificate.get("ledger_head") or values.UNKNOWN)[:16],
        )
        for group in groups
        for member in group.members
    ]
    body = table("Every run", head, rows, words=(0, 1, 2, 5))
    return section("runs", "Every run", details(f"All {_plural(len(rows), 'run')}", body))


def _title(groups: Sequence[Group]) -> str:
    methods = " against ".join(dict.fromkeys(group.method for group in groups))
    data = ", ".join(dict.fromkeys(group.data for group in groups))
    return f"{methods} on {data}"


def _named(group: Group) -> Cell:
    """Its label, with the whole title of its recipe on hover."""
    return Cell(unbroken(group.label), group.label, group.first.run.title)


def _plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _stale(numbers: Path, files: dict[str, str]) -> list[str]:
    """Figures that the comparison before this one lists and this one does not write."""
    try:
        listed = json.loads(numbers.read_text("utf-8"))["figures"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [f for f in listed if isinstance(f, str) and _FIGURE.fullmatch(f) and f not in files]
