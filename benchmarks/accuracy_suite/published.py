"""What the papers print for recipes that we measure, in percent."""

from __future__ import annotations

from tacit.papers.index import papers

_ROWS = {
    row.recipe: row.accuracy
    for paper in papers()
    for item in reversed(paper.items)  # a table, which comes first, is exacter than a figure
    for row in item.rows
    if row.accuracy is not None and not row.changes
}
_BEST_OF_001 = {
    f"{data} --epsilon {epsilon}": _ROWS[f"001/{data}-eps{epsilon}-dpsgd-br"]
    for data in ("mnist", "fashion-mnist", "cifar-10", "imdb")
    for epsilon in (1, 3)
}
"""DPSGD-BR of Table 2, beside our own best recipes."""

PUBLISHED = _ROWS | _BEST_OF_001
