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
    the ones the ledger ends with, or where the stored certificate is not the one that the ledger
    supports. A chain without a secret cannot show that the whole ledger was rewritten: compare its
    last hash with one that was kept elsewhere.
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
    if released:
        _compare(run, certificate.issue(entries))
    return issued


def _compare(run: RunDir, fresh: dict[str, Any]) -> None:
    if run.private.exists():
        raise LedgerError(
            f"{run.private} lies beside released weights: with its key the noise can be subtracted."
            " Finish the run with --resume, which erases it, before anything is published"
        )
    if not run.certificate.exists():
        raise LedgerError(f"{run.certificate} is missing; write it again with --resume")
    stored = run.read_json(run.certificate)
    differing = [key for key in {*stored, *fresh} if stored.get(key) != fresh.get(key)]
    if differing:
        raise LedgerError(
            f"{run.certificate} does not say what the ledger supports ({', '.join(differing)}):"
            " do not rely on it"
        )
    text = run.path / "certificate.txt"
    if not text.exists() or text.read_text("utf-8") != certificate.as_text(fresh):
        raise LedgerError(f"{text} does not say what the ledger supports: do not rely on it")
