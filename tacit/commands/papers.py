"""`tacit papers`: every table and figure of the four papers, repeated and shown beside theirs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tacit.commands.many import ManyValues
from tacit.commands.output import AsJson, errors, print_json, screen
from tacit.report import values

if TYPE_CHECKING:
    from tacit.papers.repeat import Result

app = typer.Typer(
    help="The papers' tables and figures, repeated here.", invoke_without_command=True
)

ItemName = Annotated[str, typer.Argument(metavar="PAPER/ITEM", help="As `tacit papers` lists it.")]
Datasets = Annotated[list[str] | None, typer.Option(help="Only rows on these data.")]
Epsilons = Annotated[list[float] | None, typer.Option(help="Only rows at these ε, as printed.")]
Seeds = Annotated[int, typer.Option(min=1, help="Runs of each row, with the seeds 0, 1, …")]
Out = Annotated[Path, typer.Option(help="Where runs lie; give it again to go on.")]


@app.callback()
def listing(
    context: typer.Context, seeds: Seeds = 3, out: Out = Path("papers"), json: AsJson = False
) -> None:
    """The papers' tables and figures, repeated here; without a command, a list of them."""
    from tacit.papers.index import papers
    from tacit.papers.repeat import minutes, state

    if context.invoked_subcommand is not None:
        return
    rows: list[dict[str, Any]] = [
        {
            "paper": paper.title,
            "authors": paper.authors,
            "item": f"{paper.number}/{item.name}",
            "title": item.title,
            "needs": item.datasets,
            "rows": [
                {"what": row.what, "recipe": row.command, "minutes": minutes(row, seeds, out)}
                for row in item.rows
            ],
            "state": state(item, seeds, out),
            "remark": item.remark,
        }
        for paper in papers()
        for item in paper.items
    ]
    if json:
        print_json({"items": rows})
        return
    shown = ""
    for row in rows:
        if row["paper"] != shown:
            shown = row["paper"]
            number = row["item"].partition("/")[0]
            screen.print(f"\nPaper {number}: {shown}", style="bold underline", soft_wrap=True)
            if row["authors"]:
                screen.print(row["authors"], soft_wrap=True, highlight=False)
        facts = [
            ", ".join(row["needs"]),
            _cost([each["minutes"] for each in row["rows"]]),
            row["state"],
            row["remark"],
        ]
        screen.print(f"[bold]{row['item']}[/bold]  {row['title']}", soft_wrap=True)
        said = " · ".join(fact for fact in facts if fact)
        screen.print(f"    {said}", style="dim", soft_wrap=True, markup=False)
    screen.print("run one with: tacit papers run 002/table1 --data-dir DATA", style="dim")


@app.command("run", cls=ManyValues)
def run(
    item: ItemName,
    datasets: Datasets = None,
    epsilons: Epsilons = None,
    seeds: Seeds = 3,
    jobs: Annotated[
        int, typer.Option(min=1, help="Train so many at once, with one thread each.")
    ] = 1,
    out: Out = Path("papers"),
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets lie.")] = None,
    json: AsJson = False,
) -> None:
    """Train the rows of a table or figure; the same command goes on where it was interrupted."""
    from tacit.board import ProgressBoard, SilentBoard
    from tacit.papers.index import find
    from tacit.papers.repeat import repeat, results

    rows = find(item).chosen(datasets, epsilons)
    board = SilentBoard() if json else ProgressBoard(errors)
    repeat(rows, seeds=seeds, out=out, jobs=jobs, data_dir=data_dir, board=board)
    _print(item, results(rows, seeds, out), as_json=json)


@app.command("show", cls=ManyValues)
def show(
    item: ItemName,
    datasets: Datasets = None,
    epsilons: Epsilons = None,
    seeds: Seeds = 3,
    out: Out = Path("papers"),
    json: AsJson = False,
) -> None:
    """Print the paper's figures beside ours, at the claimed and at the proven ε."""
    from tacit.papers.index import find
    from tacit.papers.repeat import results

    wanted = find(item)
    rows = wanted.chosen(datasets, epsilons) if wanted.rows else ()
    _print(item, results(rows, seeds, out), as_json=json, remark=wanted.remark)


def _print(item: str, found: list[Result], *, as_json: bool, remark: str = "") -> None:
    if as_json:
        more = {"remark": remark} if remark else {}
        print_json({"item": item, "rows": [each.as_json() for each in found], **more})
        return
    if remark:
        screen.print(f"{item}: {remark}", soft_wrap=True, markup=False)
    if not found:
        return
    screen.print(
        f"{item}: accuracy in %, the paper's beside ours; ε claimed, proven and audited are of our"
        " runs, and = marks the one that is held at the paper's; time is that of a run",
        markup=False,
        highlight=False,
    )
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("", overflow="fold")
    for title in ("paper", "at ε", "ours", "runs", "claimed", "proven", "audited", "time"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in found:
        row = each.row
        table.add_row(
            row.what,
            "" if row.accuracy is None else f"{row.accuracy:.2f}",
            "" if row.epsilon is None else f"{row.epsilon:g}",
            _accuracy(each),
            f"{len(each.runs)}/{each.wanted}",
            *_three(each),
            _time(each.minutes),
        )
    screen.print(table)


def _cost(minutes: list[float | None]) -> str:
    """What the rows take, from the quickest to the slowest."""
    known = [each for each in minutes if each is not None]
    if not known:
        return "time not known" if minutes else ""
    low, high = _time(min(known)), _time(max(known))
    return f"about {low if low == high else f'{low} to {high}'} a run"


def _time(minutes: float | None) -> str:
    if minutes is None:
        return ""
    return (
        f"{minutes:.1f} min"
        if minutes < 10
        else f"{minutes:.0f} min"
        if minutes < 90
        else f"{minutes / 60:.0f} h"
    )


def _accuracy(each: Result) -> str:
    if each.accuracy is None:
        return "not run"
    spread = "" if each.spread is None else f" ± {values.points(each.spread)}"
    return f"{values.percent(each.accuracy).rstrip('%')}{spread}"


def _three(each: Result) -> list[str]:
    """ε claimed, proven and audited of the runs; = before the one that is held at the paper's."""
    found = {
        "claimed": (each.claimed, values.claimed),
        "proven": (each.proven, values.proven),
        "audited": (each.audited, values.audited),
    }
    absent = "none" if each.runs else ""
    return [
        ("=" if name == each.row.equal else "") + (absent if epsilon is None else shown(epsilon))
        for name, (epsilon, shown) in found.items()
    ]
