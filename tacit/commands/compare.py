"""`tacit compare`: runs side by side, recipes trained first at equal proven budgets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import JustifyMethod
from rich.table import Table

from tacit.commands.output import AsJson, errors, print_json, screen
from tacit.commands.train import changes_from

if TYPE_CHECKING:
    from tacit.compare import Comparison

_WORD = 12  # longer words in other columns may be broken
_NAME = 8  # a group's name may be broken at any place before a number is cut
_ROOMY = 100  # from this width on, columns stand two characters apart


def compare(
    items: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|DIRECTORY|RECIPE...",
            help="Run directories, directories that hold some, or recipes to train first.",
        ),
    ],
    epsilon: Annotated[
        list[float] | None,
        typer.Option(help="Budgets to train recipes at, as proven ε: --epsilon 1 3."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Train recipes with the seeds 0, 1, …: for experiments only."),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Train so many at once, with one thread each.")
    ] = 1,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any value, in every recipe."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Where runs, page and figures go; give it again to go on.")
    ] = Path("comparison"),
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets lie.")] = None,
    json: AsJson = False,
) -> None:
    """Compare runs: a table, one HTML page, every figure as SVG and CSV.

    Finished runs are not trained again and interrupted ones go on, so the same command continues.
    """
    from tacit.board import ProgressBoard, SilentBoard
    from tacit.compare import compare as compare_runs

    found = compare_runs(
        items,
        epsilons=epsilon or (),
        seeds=seeds,
        jobs=jobs,
        changes=changes_from(changes or []),
        out=out,
        data_dir=data_dir,
        board=SilentBoard() if json else ProgressBoard(errors),
    )
    if json:
        print_json({"page": str(found.page), **found.numbers})
    else:
        _show(found)


def _show(found: Comparison) -> None:
    from tacit.report.comparison_table import columns

    used = [column for column in columns(found.groups) if column.in_terminal]
    rows = [[column.in_brief(group) for column in used] for group in found.groups]
    apart = 2 if screen.width >= _ROOMY else 1
    table = Table(box=None, padding=(0, apart, 0, 0), header_style="bold underline")
    for column, cells in zip(used, zip(*rows, strict=True), strict=True):
        title = column.brief_title or column.title
        longest = max(len(word) for text in (title, *cells) for word in text.split())
        justify: JustifyMethod = "left" if column.words else "right"
        table.add_column(title, justify=justify, min_width=min(longest, _WORD))
    table.columns[0].min_width = _NAME
    for row in rows:
        table.add_row(*row)
    screen.print(table)
    for warning in found.numbers["warnings"]:
        screen.print(f"warning: {warning}", style="yellow", markup=False)
    for note in found.numbers["notes"]:
        screen.print(note, markup=False)
    screen.print(f"page     {found.page}", soft_wrap=True)
    screen.print(f"figures  {found.page.parent / 'figures'}", soft_wrap=True)
