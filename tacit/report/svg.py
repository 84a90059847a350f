"""A matplotlib figure as an SVG element that can stand inside an HTML page."""

from __future__ import annotations

import html
import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.figure import Figure

INK = "#1f2429"
SOFT = "#5b646d"
GRID = "#e4e7ea"

_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#9aa2aa",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 11,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.unicode_minus": True,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.9,
    "path.simplify": True,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "tacit",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": SOFT,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 10,
    "ytick.color": SOFT,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 10,
}
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


@contextmanager
def style() -> Iterator[None]:
    """Draw with the report's look; letters the layout font lacks are left to the browser."""
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*missing from font.*")
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(level)


def drawing(figure: Figure, cropped: bool = False) -> str:
    """The figure as matplotlib writes it, in the report's look."""
    buffer = io.StringIO()
    with style():
        figure.savefig(
            buffer,
            format="svg",
            metadata=_NO_METADATA,
            bbox_inches="tight" if cropped else None,
            pad_inches=0.04,
        )
    return buffer.getvalue()


def inline(drawn: str, name: str, label: str) -> str:
    """The drawing as one <svg>; its ids start with the name so that figures never share one."""
    drawn = drawn[drawn.index("<svg") :].rstrip()
    drawn = re.sub(r"<style.*?</style>", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r"<defs>\s*</defs>", "", drawn)
    drawn = re.sub(r" font-family: [^;\"]*;", "", drawn)
    drawn = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", drawn)
    drawn = _rename_ids(drawn, name)
    box = re.search(r'viewBox="[^"]*"', drawn)
    opening = (
        f'<svg class="plot" role="img" aria-label="{html.escape(label)}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f"{box.group() if box else ''}>"
    )
    return opening + drawn[drawn.index(">") + 1 :]


def standalone(drawn: str, label: str) -> str:
    """The drawing as a file of its own, with a white ground and fonts that every system has."""
    drawn = drawn.replace("'DejaVu Sans'", "'DejaVu Sans', Arial, sans-serif")
    start = drawn.index(">", drawn.index("<svg")) + 1
    return f"{drawn[:start]}\n <title>{html.escape(label)}</title>{drawn[start:]}"


def _rename_ids(drawn: str, name: str) -> str:
    """Prefix the ids that something refers to and drop all others."""
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', drawn))

    def rename(match: re.Match[str]) -> str:
        return f' id="{name}-{match[1]}"' if match[1] in used else ""

    drawn = re.sub(r'(?<=[\w"]) id="([^"]*)"', rename, drawn)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", drawn)
