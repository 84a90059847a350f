"""`tacit data`: what is available, whether it is whole, and how to get it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tacit.commands.output import AsJson, errors, print_json, screen
from tacit.commands.train import changes_from

app = typer.Typer(help="List, check and fetch datasets.", no_args_is_help=True)

DataDir = Annotated[Path | None, typer.Option(help="Where datasets lie.")]
_BROKEN = 3


@app.command("list")
def list_datasets(data_dir: DataDir = None, json: AsJson = False) -> None:
    """Every named dataset, and where it was found."""
    from tacit.data.catalog import catalog

    entries = catalog(data_dir)
    if json:
        print_json([asdict(entry) for entry in entries])
        return
    table = Table("name", "records", "shape", "found", title_justify="left")
    for entry in entries:
        table.add_row(
            entry.name,
            f"{entry.train_records:,} + {entry.test_records:,}",
            "×".join(str(side) for side in entry.shape),
            entry.found or f"not here; tacit data fetch {entry.name}",
        )
    screen.print(table)


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="A dataset by name, or a path of your own.")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="How to read it, as for training."),
    ] = None,
    data_dir: DataDir = None,
    json: AsJson = False,
) -> None:
    """Compare a dataset with its published checksums and counts; see whether a file is readable."""
    asked = changes_from(changes or [])

    from tacit.data.catalog import check as compare
    from tacit.data.options import DEFAULTS
    from tacit.train import options_of, recipe_for

    options = options_of(recipe_for(name, asked)) if asked else DEFAULTS
    found = compare(name, data_dir, options=options)
    if json:
        print_json({**asdict(found), "ok": found.ok})
    else:
        screen.print(f"{found.name}: {found.found_at}", soft_wrap=True)
        for file in found.files:
            mark = "[green]ok[/green]" if file.ok else "[red]bad[/red]"
            screen.print(f"  {mark} {file.path}: {file.detail}", soft_wrap=True)
        for problem in found.problems:
            screen.print(f"  [red]problem[/red] {problem}", soft_wrap=True)
        for which, count in (("training", found.train_records), ("test", found.test_records)):
            amount = "no" if count is None else f"{count:,}"
            screen.print(f"  {amount} {which} record{'' if count == 1 else 's'}")
    if not found.ok:
        raise typer.Exit(_BROKEN)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A dataset by name.")],
    data_dir: DataDir = None,
    json: AsJson = False,
) -> None:
    """Download a dataset from its publisher and check it."""
    from tacit.data.catalog import fetch as download

    def show(file: str, done: int, total: int) -> None:
        errors.print(f"{file}: {done:,} of {total:,} bytes", end="\r")

    path = download(name, data_dir, None if json else show)
    if json:
        print_json({"name": name, "path": str(path)})
    else:
        screen.print(f"{name}: {path}", soft_wrap=True)
