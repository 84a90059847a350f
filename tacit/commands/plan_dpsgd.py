"""`tacit plan dpsgd`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from tacit.commands import plan_options as options
from tacit.commands.output import AsJson
from tacit.commands.plan_output import cost_of, cuts, dry_run_of, show, size_of, warnings_for
from tacit.privacy.certificate import SHOWN_RELATIONS, round_up
from tacit.privacy.plan import Question, SampledSchedule, solve
from tacit.privacy.relations import Relation


def dpsgd(
    records: Annotated[int | None, typer.Option(help="Training records.")] = None,
    batch_size: Annotated[float | None, typer.Option(help="Expected records per step.")] = None,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    noise: options.Noise = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = 1e-5,
    relation: options.OfRelation = Relation.ADD_OR_REMOVE_ONE,
    model: options.Model = None,
    data: options.Data = None,
    shape: options.Shape = None,
    classes: options.Classes = 10,
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
    dry_run = dry_run_of(model, data, shape, classes)
    solved_for = question.unknown()
    schedule = solve(question)
    cost = cost_of(dry_run, schedule.batch_size, schedule.steps)
    shown = tuple(dict.fromkeys((*SHOWN_RELATIONS, relation)))
    show(_answer(schedule, delta, shown, solved_for, cost), "DP-SGD", as_json=json)


def _answer(
    schedule: SampledSchedule,
    delta: float,
    shown: Sequence[Relation],
    solved_for: str,
    cost: dict[str, Any] | None,
) -> dict[str, Any]:
    claim = schedule.claimed(delta)
    return {
        "method": "dpsgd",
        "solved_for": solved_for,
        "noise": schedule.noise,
        **size_of(schedule),
        "delta": delta,
        "proven": _proven(schedule, delta, shown),
        "claimed": claim.epsilon,
        "claimed_as": claim.source,
        "by_epochs": _by_epochs(schedule, delta, shown),
        "forecast": cost,
        "warnings": warnings_for(delta, schedule.records),
    }


def _proven(schedule: SampledSchedule, delta: float, shown: Sequence[Relation]) -> dict[str, float]:
    return {r.value: round_up(schedule.proven(delta, r), 6) for r in shown}


def _by_epochs(
    schedule: SampledSchedule, delta: float, shown: Sequence[Relation]
) -> list[dict[str, Any]]:
    parts = [replace(schedule, steps=cut) for cut in cuts(schedule.steps)]
    return [
        {"epochs": part.epochs, "steps": part.steps, "proven": _proven(part, delta, shown)}
        for part in parts
    ]
