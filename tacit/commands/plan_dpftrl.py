"""`tacit plan dpftrl`: noise, epochs or mechanism for training without sampling."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from tacit.commands import plan_options as options
from tacit.commands.output import AsJson, screen
from tacit.commands.plan_output import cost_of, cuts, dry_run_of, show, warnings_for
from tacit.errors import ArgumentError
from tacit.privacy import accountants, amplified, fixed_order
from tacit.privacy.amplified import GroupedSchedule
from tacit.privacy.certificate import round_up
from tacit.privacy.fixed_order import BatchOrder, Correlation, FixedOrderSchedule
from tacit.privacy.plan import the_unknown
from tacit.privacy.relations import Relation
from tacit.report import values

Schedule = FixedOrderSchedule | GroupedSchedule
_RELATIONS = (Relation.ZERO_OUT, Relation.REPLACE_ONE)
_UNKNOWN_NOISE = 1.0


def dpftrl(
    records: options.Records,
    batch_size: options.BatchSize,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    noise: options.Noise = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = 1e-5,
    relation: options.OfRelation = Relation.ZERO_OUT,
    mechanism: Annotated[
        Literal["tree", "banded", "amplified", "best"],
        typer.Option(help="How noise is shared between steps; best needs --epsilon."),
    ] = "tree",
    restart_every: Annotated[int, typer.Option(help="Epochs per tree; 0 is one tree.")] = 0,
    completion: Annotated[bool, typer.Option(help="Fill up a tree before a restart.")] = False,
    order: Annotated[BatchOrder, typer.Option(help="Order of batches over the epochs.")] = "same",
    bands: Annotated[int, typer.Option(help="Bands of the factor; 0 chooses.")] = 0,
    honaker: Annotated[bool, typer.Option(help="Variance-reduced tree estimates.")] = True,
    model: options.Model = None,
    data: options.Data = None,
    shape: options.Shape = None,
    classes: options.Classes = 10,
    json: AsJson = False,
) -> None:
    """Plan DP-FTRL: batches in a fixed order, noise correlated over the steps."""
    accountants.check_delta(delta)
    _check(records=records, batch_size=batch_size, epochs=epochs, steps=steps, noise=noise)
    if batch_size > records:
        raise ArgumentError(
            f"batch_size is {batch_size}, larger than the {records} records; choose a batch no"
            " larger than the data"
        )
    dry_run = dry_run_of(model, data, shape, classes)
    batches = -(-records // batch_size)
    taken = steps if epochs is None else math.ceil(epochs * batches - 1e-9)
    unknown = _unknown(epsilon, noise, epochs, steps)
    if mechanism in ("amplified", "best") and unknown != "noise":
        raise ArgumentError(f"mechanism is {mechanism!r}: give --epsilon and leave out --noise")
    sigma = noise or _UNKNOWN_NOISE
    correlation = Correlation(
        "banded" if mechanism == "banded" else "tree",
        restart_every,
        completion,
        honaker,
        order,
        bands if mechanism == "banded" else 0,
    )
    given = FixedOrderSchedule(records, batch_size, taken or 1, sigma, correlation)
    chosen: Schedule = given
    if unknown == "noise" and epsilon is not None:
        if mechanism == "amplified":
            chosen = _amplified(given, bands, epsilon, delta, relation)
        elif mechanism == "best":
            chosen = min(_variants(given, epsilon, delta, relation).values(), key=_prefix_noise)
        else:
            chosen = fixed_order.noise_for(given, epsilon, delta, relation)
    elif unknown == "epochs" and epsilon is not None:
        chosen = fixed_order.epochs_for(given, epsilon, delta, relation)
    at = epsilon if epsilon is not None else chosen.proven(delta, relation)
    variants = _variants(chosen, at, delta, relation)
    cost = cost_of(dry_run, batch_size, chosen.steps)
    answer = _answer(chosen, unknown, delta) | {
        "variants": _compared(variants, delta, relation),
        "forecast": cost,
        "warnings": warnings_for(delta, records),
    }
    show(answer, "DP-FTRL", as_json=json)
    if not json:
        _show_variants(answer["variants"], at)


def _check(**given: float | None) -> None:
    for name, value in given.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ArgumentError(f"{name} is {value}; it must be a positive finite number")


def _unknown(
    epsilon: float | None, noise: float | None, epochs: float | None, steps: int | None
) -> str:
    if epochs is not None and steps is not None:
        raise ArgumentError("epochs and steps are both given; leave one of them out")
    unknown = the_unknown({"epsilon": epsilon, "noise": noise, "steps": epochs or steps})
    return "epochs" if unknown == "steps" else unknown


def _amplified(
    like: Schedule, bands: int, epsilon: float, delta: float, relation: Relation
) -> GroupedSchedule:
    grouped = GroupedSchedule(like.records, like.batch_size, like.steps, like.noise, bands or 1)
    solver = amplified.noise_for if bands else amplified.best_bands
    return solver(grouped, epsilon, delta, relation)


def _variants(
    like: Schedule, epsilon: float, delta: float, relation: Relation
) -> dict[str, Schedule]:
    """Every mechanism at the same ε and number of steps, each with the noise it needs."""
    fixed = FixedOrderSchedule(like.records, int(like.batch_size), like.steps, 1.0)
    kinds = {
        "tree": Correlation(reduced=False),
        "tree, variance-reduced": Correlation(),
        "new tree every epoch, completed": Correlation(restart_every=1, completion=True),
        "tree, any order": Correlation(order="reshuffled"),
        "banded": Correlation("banded"),
    }
    found: dict[str, Schedule] = {
        name: fixed_order.noise_for(replace(fixed, correlation=kind), epsilon, delta, relation)
        for name, kind in kinds.items()
    }
    found["independent noise, no sampling"] = fixed_order.noise_for(
        replace(fixed, correlation=Correlation("banded", bands=1)), epsilon, delta, relation
    )
    found["amplified banded"] = _amplified(fixed, 0, epsilon, delta, relation)
    return found


def _prefix_noise(schedule: Schedule) -> float:
    return schedule.noise * schedule.prefix_noise()


def _compared(
    variants: dict[str, Schedule], delta: float, relation: Relation
) -> list[dict[str, Any]]:
    rows = [
        {
            "mechanism": name,
            "noise": each.noise,
            "bands": each.bands or None,
            "sensitivity_times_rmse": math.sqrt(each.sensitivity_squared) * each.prefix_noise()
            if isinstance(each, FixedOrderSchedule)
            else None,
            "noise_in_sums": _prefix_noise(each),
            "proven": round_up(each.proven(delta, relation), 6),
        }
        for name, each in variants.items()
    ]
    return sorted(rows, key=lambda row: -float(row["noise_in_sums"] or 0.0))


def _answer(schedule: Schedule, unknown: str, delta: float) -> dict[str, Any]:
    if isinstance(schedule, FixedOrderSchedule):
        claim = schedule.claimed(delta)
        own: dict[str, Any] = {
            "mechanism": schedule.correlation.mechanism,
            "sensitivity_squared": schedule.sensitivity_squared,
            "sampling_probability": None,
        }
    else:
        claim = None
        own = {
            "mechanism": "amplified",
            "sensitivity_squared": None,
            "sampling_probability": schedule.probability,
        }
    return {
        "method": "dpftrl",
        "solved_for": unknown,
        "noise": schedule.noise,
        "steps": schedule.steps,
        "epochs": schedule.epochs,
        "batch_size": schedule.batch_size,
        "records": schedule.records,
        "delta": delta,
        **own,
        "bands": schedule.bands or None,
        "noise_in_sums": _prefix_noise(schedule),
        "proven": _proven(schedule, delta),
        "claimed": claim.epsilon if claim else None,
        "claimed_as": claim.source if claim else None,
        "by_epochs": [
            {"epochs": part.epochs, "steps": part.steps, "proven": _proven(part, delta)}
            for part in (_cut(schedule, cut) for cut in cuts(schedule.steps))
        ],
    }


def _cut(schedule: Schedule, steps: int) -> Schedule:
    """The first steps of a schedule, with the same factor."""
    if isinstance(schedule, FixedOrderSchedule):
        kind = replace(schedule.correlation, bands=schedule.bands)
        return replace(schedule, steps=steps, correlation=kind)
    return replace(schedule, steps=steps)


def _proven(schedule: Schedule, delta: float) -> dict[str, float]:
    return {r.value: round_up(schedule.proven(delta, r), 6) for r in _RELATIONS}


def _show_variants(rows: list[dict[str, Any]], epsilon: float) -> None:
    title = f"mechanisms at ε = {values.proven(epsilon)}: less noise in the sums is better"
    table = Table(
        "mechanism",
        "noise",
        "bands",
        "sensitivity × RMSE",
        "noise in the sums",
        title=title,
        title_justify="left",
    )
    for row in rows:
        product = row["sensitivity_times_rmse"]
        table.add_row(
            row["mechanism"],
            f"{row['noise']:.5g}",
            str(row["bands"] or ""),
            "" if product is None else f"{product:.1f}",
            f"{row['noise_in_sums']:.4g}",
        )
    screen.print(table)
