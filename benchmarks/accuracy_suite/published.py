"""What the papers print for recipes that we measure, in percent."""

from __future__ import annotations

from tacit.papers.index import papers

_BEST_OF_001 = {
    "mnist --epsilon 1": 98.39,
    "mnist --epsilon 3": 98.93,
    "fashion-mnist --epsilon 1": 88.93,
    "fashion-mnist --epsilon 3": 90.01,
    "cifar-10 --epsilon 1": 65.63,
    "cifar-10 --epsilon 3": 71.52,
    "imdb --epsilon 1": 66.91,
    "imdb --epsilon 3": 73.53,
}
"""DPSGD-BR of Table 2, beside our own best recipes."""

PUBLISHED = {
    row.recipe: row.accuracy
    for paper in papers()
    for item in paper.items
    for row in item.rows
    if row.accuracy is not None and not row.changes
} | _BEST_OF_001
