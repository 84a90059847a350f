"""`tacit plan dpsur` and `tacit plan dpsgd-br`: what trials cost, or how many a budget allows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from tacit.commands.output import AsJson, print_json, screen
from tacit.commands.plan_output import warnings_for
from tacit.errors import ArgumentError
from tacit.privacy import accountants, selective
from tacit.privacy.certificate import SHOWN_RELATIONS, round_up
from tacit.privacy.filter import RdpFilter, check_relation
from tacit.privacy.relations import Relation
from tacit.privacy.selective import LARGEST_BUFFER, LossTest, SelectiveSchedule, Statistic
from tacit.report import values

Choice = Literal["lowest", "average", "random"]


_USUAL_BUFFER = {"dpsur": 1, "dpsgd-br": 2}
_NEITHER = {"charge_all": None, "thinning": None, "a_star": None}
"""Of noise that changes, only what the filter lets through is known in advance."""


def selective_update(
    context: typer.Context,
    records: Annotated[int, typer.Option(help="Training records.")],
    batch_size: Annotated[float, typer.Option(help="Expected records per gradient.")],
    noise: Annotated[float, typer.Option(help="Noise multiplier of the gradients.")],
    validation_batch_size: Annotated[float, typer.Option(help="Expected records per test.")],
    validation_noise: Annotated[float, typer.Option(help="Noise multiplier of the tests.")],
    beta: Annotated[float, typer.Option(help="Threshold in units of half the range.")] = -1.5,
    trials: Annotated[int | None, typer.Option(help="Candidates to try.")] = None,
    accepted: Annotated[int | None, typer.Option(help="Updates applied, for the claim.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε proven at most.")] = None,
    delta: Annotated[float, typer.Option(help="δ, well below 1/records.")] = 1e-5,
    relation: Annotated[
        Relation, typer.Option(help="The relation that --epsilon is meant for.")
    ] = Relation.ADD_OR_REMOVE_ONE,
    buffer: Annotated[int | None, typer.Option(help="Accepted candidates to choose from.")] = None,
    choice: Annotated[Choice, typer.Option(help="How one of them is chosen.")] = "lowest",
    statistic: Annotated[Statistic, typer.Option(help="What is tested.")] = "clipped-mean",
    reach: Annotated[float, typer.Option(help="Range of the clipped sum / noise.")] = 1.5,
    decaying: Annotated[
        bool, typer.Option(help="Noise may follow earlier results: filter at one Rényi order.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Plan selective updates: candidates by DP-SGD, kept where a noisy test says so."""
    accountants.check_delta(delta)
    method = str(context.info_name)
    candidates = _USUAL_BUFFER[method] if buffer is None else buffer
    _check(trials, epsilon, accepted, candidates)
    test = LossTest(validation_batch_size, validation_noise, beta, statistic, reach)
    compares = candidates > 1 and choice == "lowest"
    given = SelectiveSchedule(records, batch_size, trials or 1, noise, test, compares)
    details = None
    if decaying:
        filtered = _filter(given, trials, epsilon, delta, relation)
        schedule = replace(given, steps=trials or filtered.trials(given))
        proven = {relation.value: accountants.epsilon(filtered.event(), delta, relation)}
        accounting = f"RDP filter at order {filtered.order:g}"
        details = {"order": filtered.order, "limit": filtered.limit}
    else:
        schedule = _constant(given, trials, epsilon, delta, relation)
        proven = {r.value: schedule.proven(delta, r) for r in SHOWN_RELATIONS}
        accounting = "thinning" if schedule.coin else "charge all"
    if accepted is not None and accepted > schedule.steps:
        raise ArgumentError(
            f"accepted is {accepted}, but there are only {schedule.steps} trials; give at most"
            " as many"
        )
    claim = schedule.claimed(delta, accepted)
    least, most = schedule.acceptance.bounds
    answer: dict[str, Any] = {
        "method": method,
        "solved_for": "trials" if trials is None else "epsilon",
        "trials": schedule.steps,
        "accepted": accepted,
        "records": records,
        "batch_size": batch_size,
        "noise": noise,
        "validation_batch_size": validation_batch_size,
        "validation_noise": validation_noise,
        "beta": beta,
        "statistic": statistic,
        "buffer": candidates,
        "choice": choice if candidates > 1 else None,
        "acceptance": [least, most],
        "delta": delta,
        "accounting": accounting,
        "proven": {name: round_up(value, 6) for name, value in proven.items()}
        | (_NEITHER if decaying else _both_ways(schedule, delta)),
        "filter": details,
        "claimed": claim.epsilon if claim else None,
        "claimed_as": claim.source if claim else None,
        "warnings": warnings_for(delta, records),
    }
    if json:
        print_json(answer)
    else:
        _show(answer)


def _check(
    trials: int | None, epsilon: float | None, accepted: int | None, candidates: int
) -> None:
    if trials is None and epsilon is None:
        raise ArgumentError(
            "trials and epsilon are missing: give trials, such as 1000, for the ε they cost, or"
            " epsilon, such as 3, for the trials it allows"
        )
    if trials is not None and trials < 1:
        raise ArgumentError(f"trials is {trials}; it must be at least 1")
    if epsilon is not None and not (epsilon > 0 and math.isfinite(epsilon)):
        raise ArgumentError(f"epsilon is {epsilon:g}; it must be a positive finite number")
    if not 1 <= candidates <= LARGEST_BUFFER:
        raise ArgumentError(f"buffer is {candidates}; it must lie between 1 and {LARGEST_BUFFER}")
    if accepted is not None and accepted < 0:
        raise ArgumentError(f"accepted is {accepted}; it must not be negative")


def _filter(
    given: SelectiveSchedule,
    trials: int | None,
    epsilon: float | None,
    delta: float,
    relation: Relation,
) -> RdpFilter:
    """What limits trials whose noise may change; with both given, the trials must fit."""
    check_relation(relation)
    if epsilon is None:
        return RdpFilter.for_trials(given, delta)
    filtered = RdpFilter.for_budget(given, epsilon, delta)
    if trials is not None and trials > filtered.trials(given):
        raise ArgumentError(
            f"epsilon is {epsilon:g}, but of {trials} trials only {filtered.trials(given)} fit even"
            " if the noise stays as it is; leave out trials, or use more noise"
        )
    return filtered


def _constant(
    given: SelectiveSchedule,
    trials: int | None,
    epsilon: float | None,
    delta: float,
    relation: Relation,
) -> SelectiveSchedule:
    """Trials of equal noise, as many as the budget allows where their number is left out."""
    if trials is None and epsilon is not None:
        return selective.trials_for(given, epsilon, delta, relation)
    schedule = given.cheapest(delta)
    found = schedule.proven(delta, relation)
    if epsilon is not None and found > epsilon:
        raise ArgumentError(
            f"epsilon is {epsilon:g}, but {trials} trials cost {values.proven(found, 4)}; leave out"
            " trials, or use more noise"
        )
    return schedule


def _both_ways(schedule: SelectiveSchedule, delta: float) -> dict[str, float | None]:
    """ε of either accounting, numerically composed for noise that stays as it is."""
    thinned = schedule.thinned(delta)
    charged = replace(schedule, coin=None).proven(delta)
    return {
        "charge_all": round_up(charged, 6),
        "thinning": round_up(thinned.proven(delta), 6) if thinned else None,
        "a_star": thinned.coin if thinned else None,
    }


def _thinning(answer: dict[str, Any]) -> str:
    proven = answer["proven"]
    if proven["thinning"] is not None:
        return f"{values.proven(proven['thinning'])} (a* = {proven['a_star']:g})"
    if answer["choice"] == "lowest":
        return "not covered: noisy losses are compared again"
    return "not covered: it accepts nearly everything"


def _show(answer: dict[str, Any]) -> None:
    table = Table("setting", "value", title=f"plan for {answer['method']}", title_justify="left")
    for key in ("trials", "accepted", "records", "batch_size", "noise", "validation_batch_size"):
        if answer[key] is not None:
            mark = "  ← solved for" if key == answer["solved_for"] else ""
            table.add_row(key.replace("_", " "), f"{answer[key]:g}{mark}")
    table.add_row("validation noise", f"{answer['validation_noise']:g}")
    least, most = answer["acceptance"]
    table.add_row("accepted with probability", f"{least:.4f} to {most:.4f}")
    table.add_row("accounting", answer["accounting"])
    proven = answer["proven"]
    for shown in (r.value for r in SHOWN_RELATIONS if r.value in proven):
        table.add_row(f"ε proven, {shown}", values.proven(proven[shown]))
    if answer["filter"] is None:
        table.add_row("ε if every trial is charged", values.proven(proven["charge_all"]))
        table.add_row("ε by thinning", _thinning(answer))
    claimed = answer["claimed"]
    table.add_row("ε claimed", "give --accepted" if claimed is None else values.claimed(claimed))
    screen.print(table)
    if answer["method"] == "dpsgd-br" and answer["filter"] is None:
        screen.print(
            "Noise stays as it is; training decays it by default: plan that by --decaying."
        )
    for warning in answer["warnings"]:
        screen.print(f"warning: {warning}", style="yellow")
