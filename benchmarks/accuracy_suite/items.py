"""A table or figure of a paper with what was measured here beside each row."""

from __future__ import annotations

from collections.abc import Callable

from accuracy_suite.stored import Summary
from tacit.papers.index import Row, find
from tacit.report import values

HEAD = (
    "| | ε | the paper's accuracy | ours | seeds | ε claimed | ε proven | updates |\n"
    "|---|---|---|---|---|---|---|---|"
)


def beside(item: str, data: str, run_of: Callable[[str], Summary | None]) -> str:
    """One line for each row of an item, of one dataset where `data` names one."""
    rows = [row for row in find(item).rows if not data or row.dataset == data]
    return "\n".join([HEAD, *(_line(row, run_of(row.command)) for row in rows)])


def _line(row: Row, run: Summary | None) -> str:
    printed = "none" if row.accuracy is None else f"{row.accuracy:.2f}"
    held = "" if row.epsilon is None else f"{row.epsilon:g} {row.equal}"
    start = f"| {row.what} | {held} | {printed} |"
    if run is None or not run.current:
        return f"{start} not measured | 0 | | | |"
    spread = "" if run.spread is None else f" ± {run.spread:.2f}"
    updates = run.outcome("applied") if "applied" in run.runs[0]["outcome"] else run.steps
    return (
        f"{start} {run.accuracy:.2f}{spread} | {run.seeds} | {_epsilon(run.claimed)} |"
        f" {_epsilon(run.proven)} | {values.count(updates)} |"
    )


def _epsilon(value: float | None) -> str:
    return "none" if value is None else values.proven(value)
