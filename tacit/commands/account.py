"""`tacit account` and `tacit report`: what a run directory says, checked and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.commands.output import AsJson, print_json, screen
from tacit.privacy.accountants import Accountant

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]


def account(
    run: RunPath,
    delta: Annotated[float | None, typer.Option(help="Another δ than the run's own.")] = None,
    accountant: Annotated[Accountant, typer.Option(help="How to add up.")] = Accountant.PLD,
    json: AsJson = False,
) -> None:
    """Recompute everything from the ledger alone; check chain, weights, recipe and certificate."""
    from tacit.privacy.certificate_text import as_text
    from tacit.verify import check

    found = check(run, delta=delta, accountant=accountant)
    if json:
        said = {"checked": list(found.checked), "not_checked": list(found.not_checked)}
        print_json({"run": str(run), "verified": True, **said, **found.certificate})
        return
    screen.print(as_text(found.certificate), markup=False, soft_wrap=True)
    for sentence in found.checked:
        screen.print(f"verified: {sentence}", style="green", soft_wrap=True)
    for sentence in found.not_checked:
        screen.print(f"not checked: {sentence}", style="yellow", soft_wrap=True)


def report(run: RunPath, json: AsJson = False) -> None:
    """Write the HTML report of a run again, after the checks of `tacit account`."""
    from tacit.verify import report as written

    path = written(run)
    if json:
        print_json({"report": str(path)})
    else:
        screen.print(str(path), soft_wrap=True)
