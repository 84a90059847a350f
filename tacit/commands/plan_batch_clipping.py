"""`tacit plan batch-clipping`: noise, epochs or ε of rounds on clipped mini-sets."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any

import typer

from tacit.commands import plan_options as options
from tacit.commands.output import AsJson, screen
from tacit.commands.plan_output import cost_of, cuts, dry_run_of, show, size_of, warnings_for
from tacit.errors import ArgumentError
from tacit.privacy import accountants, batch_plan, tradeoff
from tacit.privacy.batch_plan import BatchSchedule, Sampling
from tacit.privacy.certificate import round_up
from tacit.privacy.plan import the_unknown
from tacit.privacy.relations import Relation
from tacit.report import values

_FALSE_ALARMS = (0.001, 0.01, 0.1)
_UNKNOWN = 1.0


def batch_clipping(
    records: options.Records,
    batch_size: options.BatchSize,
    epochs: options.Epochs = None,
    noise: Annotated[
        float | None, typer.Option(help="Multiplier σ of each layer's noise N(0, (2Cσ)²).")
    ] = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = 1e-5,
    relation: options.OfRelation = Relation.REPLACE_ONE,
    layers: Annotated[int, typer.Option(help="Groups of layers that are clipped apart.")] = 1,
    mini_sets: Annotated[int, typer.Option(help="Mini-sets that a batch is cut into.")] = 1,
    sampling: Annotated[Sampling, typer.Option(help="How a round's records are drawn.")] = "subset",
    model: options.Model = None,
    data: options.Data = None,
    shape: options.Shape = None,
    classes: options.Classes = 10,
    json: AsJson = False,
) -> None:
    """Plan batch clipping: mini-sets clipped as a whole, noise on twice the bound."""
    accountants.check_delta(delta)
    given = {"epochs": epochs, "noise": noise, "epsilon": epsilon, "layers": layers}
    for name, value in given.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ArgumentError(f"{name} is {value}; it must be a positive finite number")
    unknown = the_unknown({name: given[name] for name in ("epsilon", "noise", "epochs")})
    dry_run = dry_run_of(model, data, shape, classes)
    schedule = BatchSchedule(
        records,
        batch_size,
        epochs or _UNKNOWN,
        (noise or _UNKNOWN) / math.sqrt(layers),
        sampling,
        mini_sets,
    )
    if epsilon is not None:
        solve = batch_plan.noise_for if noise is None else batch_plan.epochs_for
        schedule = solve(schedule, epsilon, delta, relation)
    answer = _answer(schedule, unknown, layers, delta, relation) | {
        "forecast": cost_of(dry_run, batch_size, schedule.steps, schedule.set_size)
    }
    show(answer, "batch clipping", as_json=json)
    if not json:
        if layers > 1:
            screen.print(
                f"noise {schedule.noise:.6g} is that of the whole release: what `tacit train` takes"
            )
        for row in answer["attacks"]:
            screen.print(
                f"with {row['false_alarms']:g} false alarms the best attack finds at most"
                f" {values.proven(row['power'])} of the records it is tried on"
            )


def _answer(
    schedule: BatchSchedule, unknown: str, layers: int, delta: float, relation: Relation
) -> dict[str, Any]:
    claim = schedule.claimed(delta)
    curve = tradeoff.of(schedule.event(), relation)
    rows = [_row(schedule, steps, delta, relation) for steps in cuts(schedule.steps)]
    return {
        "method": "batch-clipping",
        "solved_for": unknown,
        "noise": schedule.noise * math.sqrt(layers),
        "layers": layers,
        "noise_of_the_whole": schedule.noise,
        "sampling": schedule.sampling,
        "mini_sets": schedule.mini_sets,
        **size_of(schedule),
        "delta": delta,
        "proven": _proven(schedule, delta, relation),
        "claimed": claim.epsilon if claim else None,
        "claimed_as": claim.source if claim else None,
        "mu": claim.mu if claim else None,
        "attacks": [
            {"false_alarms": rate, "power": round_up(tradeoff.power(curve, rate), 6)}
            for rate in _FALSE_ALARMS
        ],
        "by_epochs": rows,
        "warnings": [*warnings_for(delta, schedule.records), *_too_small(rows, relation.value)],
    }


def _row(schedule: BatchSchedule, steps: int, delta: float, relation: Relation) -> dict[str, Any]:
    part = replace(schedule, epochs=schedule.epochs * steps / schedule.steps)
    claim = part.claimed(delta)
    return {
        "epochs": part.epochs,
        "steps": steps,
        "proven": _proven(part, delta, relation),
        "claimed": claim.epsilon if claim else None,
    }


def _proven(schedule: BatchSchedule, delta: float, relation: Relation) -> dict[str, float]:
    return {relation.value: round_up(schedule.proven(delta, relation), 6)}


def _too_small(rows: list[dict[str, Any]], relation: str) -> list[str]:
    """Where the paper's approximation promises more than is proven."""
    known = [r for r in rows if r["claimed"] is not None]
    below = [r for r in known if r["claimed"] < r["proven"][relation] * (1 - 1e-4)]
    if not below:
        return []
    worst = max(below, key=lambda r: r["proven"][relation] - r["claimed"])
    proven = values.proven(worst["proven"][relation], 4)
    return [
        f"the paper's central limit approximation is below the proven ε in {len(below)} of"
        f" {len(rows)} rows, by most at {worst['epochs']:.1f} epochs: claimed"
        f" {values.claimed(worst['claimed'], 4)}, proven {proven}"
    ]
