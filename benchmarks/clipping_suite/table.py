"""The results on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from clipping_suite import figures
from clipping_suite.figures import Json
from clipping_suite.page import milliseconds, number


def show(workload: Json, console: Console) -> None:
    """One workload's contestants, the unfinished ones with their reason."""
    table = Table(title=f"{workload['title']}, batch {workload['batch']}", title_justify="left")
    table.add_column("contestant")
    for heading in ("ms", "÷ default", "÷ best plain", "÷ ours", "peak MB", "off by", "steps"):
        table.add_column(heading, justify="right")
    table.add_column("setting")
    for row in figures.rows_of(workload):
        if row.seconds is None:
            table.add_row(row.title, *[""] * 7, f"[dim]{row.status}: {row.reason}[/dim]")
            continue
        off = "—" if row.deviation is None else f"{row.deviation:.0e}"
        table.add_row(
            row.title,
            milliseconds(row.seconds),
            *(number(value) for value in (row.to_default, row.to_best, row.to_ours)),
            number(row.memory, 0),
            off,
            str(row.repeats),
            row.setting,
        )
    console.print(table)


def show_overall(results: Json, console: Console) -> None:
    """Geometric means over all workloads."""
    table = Table(title="ratios to the best plain step, all workloads", title_justify="left")
    table.add_column("contestant")
    for heading in ("workloads", "geometric mean", "slowest", "most memory ÷ plain"):
        table.add_column(heading, justify="right")
    for each in figures.overall(figures.all_rows(results)):
        values = (each.mean, each.worst, each.worst_memory)
        table.add_row(each.title, str(each.workloads), *(number(value) for value in values))
    console.print(table)
