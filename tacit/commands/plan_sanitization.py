"""`tacit plan sanitization`: private features, public labels."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Annotated, Any

import typer
from rich.table import Table

from tacit.commands.output import AsJson, print_json, screen
from tacit.commands.plan_output import cuts, size_of, warnings_for
from tacit.errors import ArgumentError
from tacit.privacy import accountants
from tacit.privacy.certificate import round_up
from tacit.privacy.plan import Question, SampledSchedule, solve, steps_for
from tacit.privacy.relations import Relation
from tacit.privacy.sanitized import (
    NO_GUARANTEE,
    SanitizedSchedule,
    Sanitizer,
    noise_for,
    usual_range,
)
from tacit.report import values

_FEATURES = Relation.REPLACE_FEATURES
_NAMES = {
    "paper": "the paper's algorithm, which has no guarantee",
    "one-time": "one release of noised vectors",
    "joint": "DP-SGD below, noised vectors above",
    "class-sums": "one release of sums over classes",
}


class _Guarantee(str, Enum):
    PAPER = "paper"
    ONE_TIME = "one-time"
    JOINT = "joint"
    CLASS_SUMS = "class-sums"


class _Range(str, Enum):
    POSITIVE = "positive"
    SYMMETRIC = "symmetric"
    BALL = "ball"


class _Mask(str, Enum):
    EXACT = "exact"
    BERNOULLI = "bernoulli"


def sanitization(
    records: Annotated[int, typer.Option(help="Training records.")],
    batch_size: Annotated[float, typer.Option(help="Expected records per step.")] = 250,
    epochs: Annotated[float, typer.Option(help="Expected passes over the data.")] = 100,
    noise: Annotated[
        float | None, typer.Option(help="Noise multiplier, in units of C√k.", show_default=False)
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε proven at most, instead.")] = None,
    delta: Annotated[float, typer.Option(help="δ, well below 1/records.")] = 1e-5,
    guarantee: Annotated[
        _Guarantee, typer.Option(help="Which of the variants; paper proves nothing.")
    ] = _Guarantee.ONE_TIME,
    value_range: Annotated[
        _Range | None,
        typer.Option(
            "--range",
            help="Elements in [0, C] or [−C, C], or a ball; a ball for class-sums.",
            show_default="positive",
        ),
    ] = None,
    width: Annotated[int, typer.Option(help="Elements of the layer.")] = 50,
    dropout: Annotated[float, typer.Option(help="Share of elements dropped.")] = 0.0,
    mask: Annotated[_Mask, typer.Option(help="How elements are dropped.")] = _Mask.EXACT,
    activation_noise: Annotated[
        float, typer.Option(help="Noise of the vectors under joint; 0 balances it.")
    ] = 0.0,
    json: AsJson = False,
) -> None:
    """Plan training on noised activations: features are private, labels are public."""
    accountants.check_delta(delta)
    if (noise is None) == (epsilon is None):
        state = "missing" if noise is None else "given"
        raise ArgumentError(
            f"noise and epsilon are both {state}: give noise, such as 1, for the ε it costs, or"
            " epsilon, such as 3, for the noise it takes"
        )
    values_in = value_range.value if value_range else usual_range(guarantee.value)
    steps = steps_for(epochs, records, batch_size)
    once = guarantee is _Guarantee.CLASS_SUMS
    schedule = SanitizedSchedule(
        guarantee.value,
        records,
        records if once else batch_size,
        1 if once else steps,
        1.0 if noise is None else noise,
        Sanitizer(width, 1.0, values_in, dropout, mask.value),
        activation_noise,
    )
    if epsilon is not None:
        schedule = noise_for(schedule, epsilon, delta)
    solved_for = "epsilon" if epsilon is None else "noise"
    answer = _answer(schedule, solved_for, delta)
    answer["dpsgd_at_the_same_epsilon"] = _dpsgd(schedule, steps, batch_size, delta)
    if json:
        print_json(answer)
    else:
        _show(answer)


def _answer(schedule: SanitizedSchedule, solved_for: str, delta: float) -> dict[str, Any]:
    claim = schedule.claimed(delta)
    paper = schedule.guarantee == "paper"
    head_only = schedule.head_only(delta) if paper and schedule.sanitizer.counted else None
    return {
        "method": "sanitization",
        "guarantee": schedule.guarantee,
        "solved_for": solved_for,
        "noise": schedule.noise,
        "activation_noise": schedule.vectors.noise if schedule.guarantee == "joint" else None,
        "range": schedule.sanitizer.range,
        "width": schedule.sanitizer.width,
        "kept": schedule.sanitizer.kept,
        **size_of(schedule),
        "delta": delta,
        "proven": _proven(schedule, delta),
        "no_guarantee_because": NO_GUARANTEE if paper else None,
        "head_only": None if head_only is None else round_up(head_only, 6),
        "claimed": claim.epsilon if claim else None,
        "claimed_as": claim.source if claim else None,
        "by_epochs": _by_epochs(schedule, delta),
        "warnings": warnings_for(delta, schedule.records),
    }


def _proven(schedule: SanitizedSchedule, delta: float) -> dict[str, float] | None:
    if schedule.guarantee == "paper":
        return None
    return {_FEATURES.value: round_up(schedule.proven(delta), 6)}


def _by_epochs(schedule: SanitizedSchedule, delta: float) -> list[dict[str, Any]]:
    rows = []
    for cut in cuts(schedule.steps):
        part = replace(schedule, steps=cut)
        claim = part.claimed(delta)
        rows.append(
            {
                "epochs": part.epochs,
                "steps": cut,
                "proven": _proven(part, delta),
                "claimed": claim.epsilon if claim else None,
            }
        )
    return rows


def _dpsgd(
    schedule: SanitizedSchedule, steps: int, batch_size: float, delta: float
) -> dict[str, Any]:
    """What DP-SGD needs for the same ε: under replace-features, and if records come and go."""
    target = schedule.proven(delta)
    if schedule.guarantee == "paper":
        claim = schedule.claimed(delta)
        target = claim.epsilon if claim else 0.0
    found = {}
    for relation in (_FEATURES, Relation.ADD_OR_REMOVE_ONE):
        question = Question(
            delta=delta,
            epsilon=target,
            steps=steps,
            batch_size=batch_size,
            records=schedule.records,
            relation=relation,
        )
        answer: SampledSchedule = solve(question)
        found[relation.value] = answer.noise
    return {"epsilon": target, "noise": found}


def _show(answer: dict[str, Any]) -> None:
    table = Table("setting", "value", title=_NAMES[answer["guarantee"]], title_justify="left")
    for key in ("noise", "activation_noise", "steps", "epochs", "batch_size", "records", "delta"):
        if answer[key] is not None:
            mark = "  ← solved for" if key == answer["solved_for"] else ""
            table.add_row(key.replace("_", " "), f"{answer[key]:g}{mark}")
    table.add_row("elements", f"{answer['kept']:g} of {answer['width']}, {answer['range']}")
    for relation, epsilon in (answer["proven"] or {}).items():
        table.add_row(f"ε proven, {relation}", values.proven(epsilon))
    if answer["proven"] is None:
        table.add_row("ε proven for the weights", "none")
    if answer["head_only"] is not None:
        table.add_row("ε proven for the head alone", values.proven(answer["head_only"]))
    claimed = answer["claimed"]
    table.add_row("ε claimed", "none" if claimed is None else values.claimed(claimed))
    screen.print(table)
    if answer["no_guarantee_because"]:
        screen.print(f"no guarantee: {answer['no_guarantee_because']}", style="red")
    same = answer["dpsgd_at_the_same_epsilon"]
    screen.print(
        f"DP-SGD at ε = {values.proven(same['epsilon'])}: noise"
        f" {same['noise'][_FEATURES.value]:g} when features are replaced,"
        f" {same['noise'][Relation.ADD_OR_REMOVE_ONE.value]:g} when a record is added or removed"
    )
    for warning in answer["warnings"]:
        screen.print(f"warning: {warning}", style="yellow")
