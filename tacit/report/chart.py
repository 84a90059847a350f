"""A figure with its words and its numbers: inside a page, or as an SVG and a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from matplotlib.figure import Figure

from tacit.report.markup import escape, unbroken
from tacit.report.svg import drawing, inline, standalone


@dataclass(frozen=True)
class Chart:
    """One figure; `rows`, the header first, are the numbers it draws, with all their digits."""

    name: str
    title: str
    caption: str
    figure: Figure
    rows: Sequence[Sequence[object]] = ()
    wide: bool = False
    cropped: bool = False

    @property
    def points(self) -> int:
        """How many rows of numbers it draws."""
        return max(len(self.rows) - 1, 0)

    def markup(self) -> str:
        """The figure as HTML; its class is its name."""
        kind = f"{self.name} wide" if self.wide else self.name
        words = f"<strong>{escape(unbroken(self.title))}</strong> {escape(unbroken(self.caption))}"
        drawn = inline(self._drawing, self.name, self.title)
        return f'<figure class="{kind}">{drawn}<figcaption>{words}</figcaption></figure>'

    def svg(self) -> str:
        """The figure as a file of its own."""
        return standalone(self._drawing, self.title)

    def csv(self) -> str:
        """The numbers of the figure; a missing one is an empty cell."""
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows(self.rows)
        return file.getvalue()

    @cached_property
    def _drawing(self) -> str:
        return drawing(self.figure, self.cropped)
