"""What all plans share: the forecast, the tables, the warnings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Protocol

from rich.table import Table

from tacit.commands.output import print_json, screen
from tacit.data.published import DATASETS
from tacit.errors import ArgumentError
from tacit.forecast import forecast
from tacit.report import values

TABLE_ROWS = 10

DryRun = tuple[str, tuple[int, ...], int, int]


def dry_run_of(
    model: str | None, data: str | None, shape: str | None, classes: int
) -> DryRun | None:
    """Model, shape of a record, classes and token ids to forecast with; checked first."""
    if model is None:
        return None
    from tacit.models import check_name

    check_name(model)
    if classes < 2:
        raise ArgumentError(f"classes is {classes}; there must be at least two")
    if data is not None:
        if data not in DATASETS:
            raise ArgumentError(f"data is {data!r}; known datasets: {', '.join(DATASETS)}")
        known = DATASETS[data]
        tokens = 4097 if known.kind == "text" else 0
        return model, known.shape, len(known.class_names), tokens
    if shape is None:
        raise ArgumentError(f"model is {model!r}: give --data or --shape to forecast its cost")
    try:
        sides = tuple(int(side) for side in shape.split(","))
    except ValueError:
        raise ArgumentError(f"shape is {shape!r}; write it as 1,28,28") from None
    return model, sides, classes, 0


def cost_of(
    dry_run: DryRun | None, batch_size: float, steps: int, set_size: int = 1
) -> dict[str, Any] | None:
    """Time and memory of a plan for a model, without data."""
    if dry_run is None:
        return None
    model, shape, classes, tokens = dry_run
    found = forecast(
        model, shape, classes, round(batch_size), steps, tokens=tokens, set_size=set_size
    )
    return asdict(found)


def warnings_for(delta: float, records: int) -> list[str]:
    """What a person should know before relying on a plan."""
    if delta < 1 / records:
        return []
    return [f"delta {delta:g} is at least one over {records} records"]


class Sized(Protocol):
    """What every plan on sampled records says of its size."""

    @property
    def steps(self) -> int: ...

    @property
    def epochs(self) -> float: ...

    @property
    def batch_size(self) -> float: ...

    @property
    def records(self) -> int: ...

    @property
    def probability(self) -> float: ...


def size_of(plan: Sized) -> dict[str, Any]:
    """Its size, for the answer."""
    return {
        "steps": plan.steps,
        "epochs": plan.epochs,
        "batch_size": plan.batch_size,
        "records": plan.records,
        "sampling_probability": plan.probability,
    }


def cuts(steps: int) -> list[int]:
    """Steps at which a table over epochs stops."""
    rows = min(TABLE_ROWS, steps)
    return sorted({-(-steps * i // rows) for i in range(1, rows + 1)})


def show(answer: dict[str, Any], title: str, *, as_json: bool) -> None:
    """Print a plan."""
    if as_json:
        print_json(answer)
        return
    table = Table("setting", "value", title=f"plan for {title}", title_justify="left")
    for key in ("noise", "steps", "epochs", "batch_size", "records", "delta"):
        mark = "  ← solved for" if key == answer["solved_for"] else ""
        table.add_row(key.replace("_", " "), f"{answer[key]:g}{mark}")
    for relation, epsilon in answer["proven"].items():
        table.add_row(f"ε proven, {relation}", values.proven(epsilon))
    claimed = answer["claimed"]
    table.add_row("ε claimed", "none" if claimed is None else values.claimed(claimed))
    cost = answer["forecast"]
    if cost:
        table.add_row("time", values.duration(cost["seconds"]))
        table.add_row("memory", f"{cost['peak_bytes'] / 2**20:,.0f} MiB at most")
    screen.print(table)
    by_epochs = Table("epochs", "steps", *answer["proven"], title="ε proven", title_justify="left")
    for row in answer["by_epochs"]:
        by_epochs.add_row(
            f"{row['epochs']:.2f}",
            f"{row['steps']}",
            *(values.proven(epsilon) for epsilon in row["proven"].values()),
        )
    screen.print(by_epochs)
    for warning in answer["warnings"]:
        screen.print(f"warning: {warning}", style="yellow")
