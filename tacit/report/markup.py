"""Small pieces of HTML; every text that reaches the page is escaped here."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tacit.report import values


def escape(text: object) -> str:
    """Text made safe for element content and quoted attributes."""
    return html.escape(values.clean(str(text)), quote=True)


def unbroken(text: str) -> str:
    """The text with formulas such as δ = 1e-5 that no line break may tear apart."""
    return re.sub(" ([≤±≥=]) ", "\u00a0\\1\u00a0", text)


def paragraph(text: str, kind: str = "") -> str:
    """One paragraph, nothing for an empty text."""
    return f"<p{_class(kind)}>{escape(unbroken(text))}</p>" if text else ""


def sentences(value: object) -> list[str]:
    """A list of sentences from a JSON value, also when a single one stands alone."""
    if value is None or value == "":
        return []
    if isinstance(value, list):
        return [values.plain(item) for item in value]
    return [values.plain(value)]


def bullets(items: Sequence[str], empty: str) -> str:
    """A list, or a quiet line where there is nothing to list."""
    if not items:
        return paragraph(empty, "quiet")
    return f"<ul>{''.join(f'<li>{escape(unbroken(item))}</li>' for item in items)}</ul>"


def box(kind: str, role: str, title: str, items: Sequence[str]) -> str:
    """A box that stands out, nothing where there is nothing to say."""
    if not items:
        return ""
    return f'<div class="{kind}" role="{role}"><h2>{escape(title)}</h2>{bullets(items, "")}</div>'


def facts(
    pairs: Iterable[tuple[str, str]], code: Sequence[str] = (), strong: Sequence[str] = ()
) -> str:
    """Names with their values; the values of names in code or strong are set that way."""
    rows = []
    for name, value in pairs:
        tag = "code" if name in code else "strong" if name in strong else ""
        shown = f"<{tag}>{escape(value)}</{tag}>" if tag else escape(value)
        rows.append(f"<div><dt>{escape(name)}</dt><dd>{shown}</dd></div>")
    return f'<dl class="facts">{"".join(rows)}</dl>' if rows else ""


@dataclass(frozen=True)
class Cell:
    """A cell that is sorted by another value than the text it shows; the hint is shown on hover."""

    text: str
    value: object
    hint: str = ""


def table(
    name: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str | Cell]],
    words: Iterable[int] = (0,),
    keys: Sequence[str] = (),
) -> str:
    """A table that scrolls inside its own box; the columns in words are texts, not numbers.

    With keys, one per column, a script may sort it: they name the columns.
    """
    left = frozenset(words)
    kinds = ["" if column in left else ' class="number"' for column in range(len(head))]
    named = [f' data-key="{escape(key)}"' for key in keys] or [""] * len(head)
    top = "".join(
        f'<th scope="col"{kind}{key}>{escape(cell)}</th>'
        for kind, key, cell in zip(kinds, named, head, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(_cell(kind, cell) for kind, cell in zip(kinds, row, strict=True))}</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll{" sortable" if keys else ""}" role="region" tabindex="0" '
        f'aria-label="{escape(name)}">'
        f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(kind: str, cell: str | Cell) -> str:
    if isinstance(cell, str):
        return f"<td{kind}>{escape(cell)}</td>"
    value = "" if cell.value is None else escape(cell.value)
    hint = f' title="{escape(cell.hint)}"' if cell.hint else ""
    return f'<td{kind} data-value="{value}"{hint}>{escape(cell.text)}</td>'


def section(name: str, title: str, *parts: str) -> str:
    """A section with its heading."""
    body = "\n".join(part for part in parts if part)
    return (
        f'<section aria-labelledby="{name}">\n<h2 id="{name}">{escape(title)}</h2>\n'
        f"{body}\n</section>"
    )


def block(title: str, body: str) -> str:
    """A heading with what belongs to it, nothing for an empty body."""
    return f'<div class="block"><h3>{escape(title)}</h3>{body}</div>' if body else ""


def details(title: str, body: str, opened: bool = False) -> str:
    """A part that unfolds; in print it is always open."""
    mark = " open" if opened else ""
    return f"<details{mark}><summary>{escape(title)}</summary>{body}</details>"


def verbatim(text: str) -> str:
    """A text exactly as it is, scrolling inside its own box."""
    # A parser drops one newline after <pre>, so one is given to keep the text's own.
    return f'<pre tabindex="0">\n{escape(text)}</pre>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
