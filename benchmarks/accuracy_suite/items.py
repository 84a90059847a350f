"""A table or figure of a paper with what was measured here beside each row."""

from __future__ import annotations

from collections.abc import Callable

from accuracy_suite.shown import epsilon, table
from accuracy_suite.stored import Summary
from tacit.papers.index import Row, find
from tacit.report import values

HEADINGS = ("", "ε", "the paper's", "ours", "seeds", "ε claimed", "ε proven", "updates")


def beside(item: str, data: str, run_of: Callable[[str], Summary | None]) -> str:
    """One line for each row of an item, of one dataset where `data` names one."""
    rows = [row for row in find(item).rows if not data or row.dataset == data]
    return table(HEADINGS, [_cells(row, run_of(row.command)) for row in rows])


def _cells(row: Row, run: Summary | None) -> list[str]:
    printed = "none" if row.accuracy is None else f"{row.accuracy:.2f}"
    held = "" if row.epsilon is None else f"{row.epsilon:g} {row.equal}"
    if run is None:
        return [row.what, held, printed, "not measured", "0", "", "", ""]
    counted = run.runs[0].get("outcome", {})
    updates = run.outcome("applied") if "applied" in counted else run.steps
    mark = "" if run.current else " (an older form of it)"
    ours = [run.scored + mark, str(run.seeds), epsilon(run.claimed), epsilon(run.proven)]
    return [row.what, held, printed, *ours, values.count(updates)]
