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
    """Recompute everything from the ledger alone, and check chain, weights and certificate."""
    from tacit.privacy.certificate import as_text
    from tacit.verify import account as verified

    issued = verified(run, delta=delta, accountant=accountant)
    if json:
        print_json({"run": str(run), "verified": True, **issued})
        return
    screen.print(as_text(issued), markup=False)
    screen.print("verified: the ledger's chain is whole", style="green")
    if issued["weights_sha256"]:
        screen.print("verified: the weights are the ones the ledger ends with", style="green")


def report(run: RunPath, json: AsJson = False) -> None:
    """Write the HTML report of a run again."""
    from tacit.report import write_report

    path = write_report(run)
    if json:
        print_json({"report": str(path)})
    else:
        screen.print(str(path), soft_wrap=True)
