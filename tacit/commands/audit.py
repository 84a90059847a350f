"""`tacit audit`: attack a run or a recipe, and bound ε from below."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import JustifyMethod
from rich.table import Table

from tacit.commands.output import AsJson, errors, print_json, screen
from tacit.commands.train import changes_from
from tacit.errors import ArgumentError, AuditError
from tacit.report import values

if TYPE_CHECKING:
    from tacit.audit.run import Audit
    from tacit.audit.selftest import Tried
    from tacit.audit.verdict import Finding


def audit(
    what: Annotated[
        str | None,
        typer.Argument(metavar="RUN|RECIPE", help="A finished run directory, or a recipe."),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help="gradient-canaries, input-canaries, encoder-columns, loss-threshold,"
            " shadow-models, partial-gradients, lira-offline, lira-online or rmia; may be given"
            " several times."
        ),
    ] = None,
    canaries: Annotated[int | None, typer.Option(min=8, help="Canaries in all runs.")] = None,
    runs: Annotated[int | None, typer.Option(min=1, help="Runs with canaries.")] = None,
    shadows: Annotated[int, typer.Option(min=2, help="Shadow models to train.")] = 8,
    targets: Annotated[int, typer.Option(min=1, help="Models to attack, for a recipe.")] = 1,
    pairs: Annotated[
        int | None,
        typer.Option(min=8, help="Pairs of records, one of each is trained on; default all."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides coins and noise.")] = 0,
    confidence: Annotated[float, typer.Option(help="Of the audited ε.")] = 0.95,
    jobs: Annotated[
        int, typer.Option(min=1, help="Play so many runs at once, with one thread each.")
    ] = 1,
    self_test: Annotated[
        bool,
        typer.Option("--self-test", help="Plant known faults and see that the audit finds them."),
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any recipe value."),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(help="Where runs are kept, which are private; give it again to go on."),
    ] = Path("audit"),
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets lie.")] = None,
    json: AsJson = False,
) -> None:
    """Attack a model or its training; ends with a lower bound on ε and a verdict.

    Exit code 9 where the attack shows more than is proven. Attacks on trained models read the
    training records, so their figures are private unless those records are public.
    """
    if self_test:
        if what is not None:
            raise ArgumentError("--self-test audits planted faults: leave out the run or recipe")
        _self_test(seed, json)
        return
    if what is None:
        raise ArgumentError("nothing to audit: name a run directory or a recipe, or --self-test")
    from tacit.audit.attacks import Settings
    from tacit.audit.canaries import DEFAULT_CANARIES
    from tacit.audit.run import audit as run_audit
    from tacit.audit.verdict import Status
    from tacit.board import ProgressBoard, SilentBoard

    done = run_audit(
        what,
        attacks=attack or (),
        changes=changes_from(changes or []),
        settings=Settings(canaries or DEFAULT_CANARIES, runs, seed, shadows, targets, pairs),
        confidence=confidence,
        jobs=jobs,
        out=out,
        data_dir=data_dir,
        board=SilentBoard() if json else ProgressBoard(errors),
    )
    if json:
        print_json({**done.as_json(), "exit_code": 9 * (done.worst.status is Status.BROKEN)})
    else:
        _show(done, out)
    if done.worst.status is Status.BROKEN:
        if json:
            raise typer.Exit(AuditError.exit_code)
        raise AuditError(done.worst.verdict)


def _show(done: Audit, out: Path) -> None:
    table = Table(title=done.title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    names = ["attack", "ε audited", "ε proven", "AUC", "allowed", "coins"]
    rates = list(done.findings[0].coins_needed)
    names += [f"TPR at {values.short_percent(float(rate))} FPR" for rate in rates]
    for name in names:
        justify: JustifyMethod = "left" if name == "attack" else "right"
        table.add_column(name, justify=justify, no_wrap=name == "AUC")
    for found in done.findings:
        table.add_row(
            found.attack,
            f"≥ {values.audited(found.epsilon)}",
            values.proven(found.proven),
            f"{found.auc.estimate:.3f}\n({found.auc.low:.3f}–{found.auc.high:.3f})",
            f"≤ {found.highest_auc:.3f}",
            f"{found.coins:,}",
            *(_rate(found, rate) for rate in rates),
        )
    screen.print(table)
    for found in done.findings:
        style = {"consistent": "green", "broken": "bold red"}.get(found.status.value, "yellow")
        screen.print(found.verdict, style=style, markup=False)
    if done.on_training_records:
        screen.print(
            "These figures were computed from training records: do not publish them unless the"
            " records are public.",
            style="yellow",
        )
    screen.print(f"page     {out / 'audit.html'}", soft_wrap=True)


def _rate(found: Finding, false_positives: str) -> str:
    rate = found.true_positives.get(false_positives)
    if rate is None:
        return f"needs {found.coins_needed[false_positives]:,} coins"
    return f"{rate.estimate:.2%}"


def _self_test(seed: int, json: bool) -> None:
    from tacit.audit.selftest import self_test, sizes

    def progress(name: str, done: int, of: int) -> None:
        if name and not json:
            errors.print(f"{done + 1} of {of}: {name}", highlight=False)

    tried = self_test(seed=seed, progress=progress)
    failed = [one.fault.name for one in tried if not one.passed]
    if json:
        shown = [_as_json(one) for one in tried]
        print_json({"passed": not failed, "sizes": sizes(), "tried": shown})
    else:
        _show_tried(tried)
    if failed:
        raise AuditError(f"the audit is not to be trusted: it was wrong about {', '.join(failed)}")


def _as_json(one: Tried) -> dict[str, object]:
    found = one.finding.as_json()
    del found["roc"]
    said = {"fault": one.fault.name, "harmless": one.fault.harmless, "passed": one.passed}
    return {**said, "finding": found}


def _show_tried(tried: list[Tried]) -> None:
    table = Table(title="Planted faults", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("fault", "ε audited", "ε as charged", "audit says", ""):
        table.add_column(name, justify="right" if name.startswith("ε") else "left")
    for one in tried:
        table.add_row(
            one.fault.name,
            f"≥ {values.audited(one.finding.epsilon)}",
            values.proven(one.finding.proven),
            one.finding.status.value,
            "[green]right[/green]" if one.passed else "[red]wrong[/red]",
        )
    screen.print(table)
