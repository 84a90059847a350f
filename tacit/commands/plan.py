"""`tacit plan METHOD`: solve for the one value that is left out, and say what it will cost."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.table import Table

from tacit.commands.output import AsJson, print_json, screen
from tacit.data.published import DATASETS
from tacit.errors import ArgumentError
from tacit.forecast import Forecast, forecast
from tacit.privacy.certificate import SHOWN_RELATIONS, round_up
from tacit.privacy.plan import Question, SampledSchedule, solve
from tacit.privacy.relations import Relation
from tacit.report import values

app = typer.Typer(help="Solve for ε, noise, epochs, batch size or records.", no_args_is_help=True)

_TABLE_ROWS = 10


@app.callback()
def plan() -> None:
    """Solve for whichever one of ε, noise, epochs, batch size and records is left out."""


@app.command()
def dpsgd(
    records: Annotated[int | None, typer.Option(help="Training records.")] = None,
    batch_size: Annotated[float | None, typer.Option(help="Expected records per step.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Expected passes over the data.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps, instead of epochs.")] = None,
    noise: Annotated[float | None, typer.Option(help="Noise multiplier.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε proven at most.")] = None,
    delta: Annotated[float, typer.Option(help="δ, well below 1/records.")] = 1e-5,
    relation: Annotated[
        Relation, typer.Option(help="The relation that --epsilon is meant for.")
    ] = Relation.ADD_OR_REMOVE_ONE,
    model: Annotated[str | None, typer.Option(help="Forecast time and memory for it.")] = None,
    data: Annotated[str | None, typer.Option(help="Shape of the records by dataset.")] = None,
    shape: Annotated[str | None, typer.Option(help="Shape of a record: 1,28,28.")] = None,
    classes: Annotated[int, typer.Option(help="Classes, with --shape.")] = 10,
    json: AsJson = False,
) -> None:
    """Plan DP-SGD: Poisson samples, per-record clipping, Gaussian noise."""
    question = Question(
        delta=delta,
        epsilon=epsilon,
        noise=noise,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        records=records,
        relation=relation,
    )
    dry_run = _dry_run(model, data, shape, classes)
    solved_for = question.unknown()
    schedule = solve(question)
    cost = forecast_of(schedule, dry_run) if dry_run else None
    answer = _answer(schedule, delta, solved_for, cost)
    if json:
        print_json(answer)
    else:
        _show(answer)


def _answer(
    schedule: SampledSchedule, delta: float, solved_for: str, cost: Forecast | None
) -> dict[str, Any]:
    warnings = []
    if delta >= 1 / schedule.records:
        warnings.append(f"delta {delta:g} is at least one over {schedule.records} records")
    claim = schedule.claimed(delta)
    return {
        "method": "dpsgd",
        "solved_for": solved_for,
        "noise": schedule.noise,
        "steps": schedule.steps,
        "epochs": schedule.epochs,
        "batch_size": schedule.batch_size,
        "records": schedule.records,
        "sampling_probability": schedule.probability,
        "delta": delta,
        "proven": _proven(schedule, delta),
        "claimed": claim.epsilon,
        "claimed_as": claim.source,
        "by_epochs": _by_epochs(schedule, delta),
        "forecast": asdict(cost) if cost else None,
        "warnings": warnings,
    }


def _proven(schedule: SampledSchedule, delta: float) -> dict[str, float]:
    return {r.value: round_up(schedule.proven(delta, r), 6) for r in SHOWN_RELATIONS}


def _by_epochs(schedule: SampledSchedule, delta: float) -> list[dict[str, Any]]:
    rows = min(_TABLE_ROWS, schedule.steps)
    cuts = sorted({-(-schedule.steps * i // rows) for i in range(1, rows + 1)})
    parts = [replace(schedule, steps=cut) for cut in cuts]
    return [
        {"epochs": part.epochs, "steps": part.steps, "proven": _proven(part, delta)}
        for part in parts
    ]


DryRun = tuple[str, tuple[int, ...], int, int]


def _dry_run(model: str | None, data: str | None, shape: str | None, classes: int) -> DryRun | None:
    """Model, shape of a record, classes and token ids to forecast with; checked first."""
    if model is None:
        return None
    from tacit.models import check_name

    check_name(model)
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


def forecast_of(schedule: SampledSchedule, dry_run: DryRun) -> Forecast:
    """Time and memory of a schedule for a model, without data."""
    model, shape, classes, tokens = dry_run
    return forecast(
        model, shape, classes, round(schedule.batch_size), schedule.steps, tokens=tokens
    )


def _show(answer: dict[str, Any]) -> None:
    table = Table("setting", "value", title="plan for DP-SGD", title_justify="left")
    for key in ("noise", "steps", "epochs", "batch_size", "records", "delta"):
        mark = "  ← solved for" if key == answer["solved_for"] else ""
        table.add_row(key.replace("_", " "), f"{answer[key]:g}{mark}")
    for relation, epsilon in answer["proven"].items():
        table.add_row(f"ε proven, {relation}", values.proven(epsilon))
    table.add_row("ε claimed", values.proven(answer["claimed"]))
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
