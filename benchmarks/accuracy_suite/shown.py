"""Bounds and tables as pages show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tacit.report import values


def epsilon(value: float | None) -> str:
    """An upper bound, rounded up."""
    return "none" if value is None else values.proven(value)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [_line(headings), f"|{'---|' * len(headings)}", *(_line(row) for row in rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
