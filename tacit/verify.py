"""Check a run from its files alone: the chain, the weights, the certificate, the three numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tacit.errors import LedgerError
from tacit.privacy import certificate, ledger
from tacit.privacy.accountants import Accountant
from tacit.rundir import RunDir


def account(
    path: Path, *, delta: float | None = None, accountant: Accountant = Accountant.PLD
) -> dict[str, Any]:
    """The certificate recomputed from the ledger, after every check.

    Raises LedgerError where a line was removed, edited or reordered, where the weights are not
    the ones the ledger ends with, or where the stored certificate promises more than the ledger
    supports.
    """
    run = RunDir.open(path)
    entries = ledger.read(run.ledger)
    issued = certificate.issue(entries, delta=delta, accountant=accountant)
    released = issued["weights_sha256"]
    if run.weights.exists() and run.weights_hash() != released:
        raise LedgerError(
            f"{run.weights} is not what the ledger ends with: it was changed or belongs to another"
            " run, so this ledger proves nothing about it"
        )
    if released and not run.weights.exists():
        raise LedgerError(f"{run.weights} is missing, though the ledger says it was released")
    if run.certificate.exists():
        _compare(run, entries, certificate.issue(entries))
    return issued


def _compare(run: RunDir, entries: list[ledger.Entry], fresh: dict[str, Any]) -> None:
    stored = run.read_json(run.certificate)
    if stored.get("ledger_head") != entries[-1].hash:
        raise LedgerError(
            f"{run.certificate} was issued for another state of the ledger: entries were removed"
            " or added since"
        )
    if stored.get("proven") != fresh["proven"] or stored.get("guarantee") != fresh["guarantee"]:
        raise LedgerError(
            f"{run.certificate} does not say what the ledger supports: issue it again from the"
            " ledger and do not rely on the stored one"
        )
