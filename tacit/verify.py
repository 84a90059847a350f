"""Check a run from its files alone: chain, weights, recipe, certificate, the three numbers."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tacit import config
from tacit.config import Recipe
from tacit.errors import RESUME, LedgerError, RunError
from tacit.privacy import certificate, certificate_text, ledger
from tacit.privacy.accountants import Accountant
from tacit.report import write_report
from tacit.rundir import RunDir

UNCOVERED = "metrics.json (accuracy, loss, times, curves) and report.html: no ledger covers them"


@dataclass(frozen=True)
class Checked:
    """The certificate recomputed from the ledger; what was compared with it, and what was not."""

    certificate: dict[str, Any]
    checked: tuple[str, ...]
    not_checked: tuple[str, ...]


def account(
    path: Path, *, delta: float | None = None, accountant: Accountant = Accountant.PLD
) -> dict[str, Any]:
    """The certificate recomputed from the ledger, after every check that `check` makes."""
    return check(path, delta=delta, accountant=accountant).certificate


def report(path: Path) -> Path:
    """Write `path`/report.html again, after every check; nothing is written where one fails."""
    check(path)
    return write_report(path)


def check(
    path: Path, *, delta: float | None = None, accountant: Accountant = Accountant.PLD
) -> Checked:
    """Compare every file that the ledger covers with it.

    Raises LedgerError where a line was removed, edited or reordered, where weights or recipe are
    not the ones the ledger names, or where the stored certificate is not the one that the ledger
    supports: a run without privacy has none. A chain without a secret cannot show that the whole
    ledger was rewritten: compare its last hash with one that was kept elsewhere.
    """
    run = RunDir.open(path)
    entries = ledger.read(run.ledger)
    issued = certificate.issue(entries, delta=delta, accountant=accountant)
    checked, not_checked = ["the ledger's chain is whole"], [UNCOVERED]
    unread = _check_recipe(run, _stated(entries))
    if unread:
        not_checked.insert(0, unread)
    else:
        checked.append("recipe.toml is the one the run was started with")
    if issued["weights_sha256"]:
        checked += _check_released(run, entries, issued["weights_sha256"])
        checked += _check_export(run, entries)
    else:
        _check_unreleased(run)
    return Checked(issued, tuple(checked), tuple(not_checked))


def _stated(entries: list[ledger.Entry]) -> dict[str, Any]:
    """What was promised, with what a search over settings chose in the end."""
    chosen = [entry.body["selected"] for entry in entries if "selected" in entry.body]
    return {**entries[0].body, **(chosen[-1] if chosen else {})}


def _check_recipe(run: RunDir, promise: dict[str, Any]) -> str:
    """Why the recipe cannot be compared, nothing where it is the one the ledger names."""
    try:
        found = Recipe.parse(config.read(str(run.recipe))).digest()
    except (OSError, ValueError):
        found = None
    if found is not None and found == promise.get("recipe_digest"):
        return ""
    made_by, ours = promise["versions"].get("tacit"), version("tacit")
    if run.recipe.exists() and made_by != ours:
        return f"recipe.toml: it was written by tacit {made_by}, this is tacit {ours}"
    raise LedgerError(
        f"{run.recipe} is not the recipe that the ledger names: it was changed, cannot be"
        " read or belongs to another run. Put the original back; nothing it says can be relied on"
    )


def _check_released(run: RunDir, entries: list[ledger.Entry], released: str) -> list[str]:
    if not run.weights.exists():
        raise LedgerError(f"{run.weights} is missing, though the ledger says it was released")
    _check_weights(run, released)
    if run.private.exists():
        raise LedgerError(
            f"{run.private} lies beside released weights: with its key the noise can be subtracted."
            f" Finish the run with {RESUME}, which erases it, before anything is published"
        )
    fresh = certificate.issue(entries)
    weights = "the weights are the ones the ledger ends with"
    if not certificate.is_written(fresh):
        _check_absent(run, "the run has no privacy guarantee, so there is none to be had")
        return [weights, "there is no certificate, as it must be for a run without privacy"]
    _check_certificate(run, entries, fresh)
    return [weights, "certificate.json and certificate.txt say what the ledger supports"]


def _check_export(run: RunDir, entries: list[ledger.Entry]) -> list[str]:
    """The released vectors, where there are any, must be those that the ledger names."""
    named = [entry.body["sha256"] for entry in entries if entry.kind == "export"]
    if not named and not run.export.exists():
        return []
    if not run.export.exists() or named[-1:] != [run.export_hash()]:
        raise LedgerError(
            f"{run.export} is not what the ledger names: it was removed, changed or belongs to"
            " another run, so this ledger proves nothing about it"
        )
    return ["the sanitized vectors are the ones the ledger names"]


def _check_unreleased(run: RunDir) -> None:
    if run.weights.exists():
        _check_weights(run, None)
    _check_absent(run, "the ledger does not say that the run was finished")


def _check_weights(run: RunDir, released: str | None) -> None:
    if run.weights_hash() != released:
        raise LedgerError(
            f"{run.weights} is not what the ledger ends with: it was changed or belongs to another"
            " run, so this ledger proves nothing about it"
        )


def _check_absent(run: RunDir, reason: str) -> None:
    for path in (run.certificate, run.certificate_text):
        if path.exists():
            raise LedgerError(
                f"{path} must not be there: {reason}. Do not rely on it; remove it, or let"
                f" tacit train --resume --out {run.path} put things right"
            )


def _check_certificate(run: RunDir, entries: list[ledger.Entry], fresh: dict[str, Any]) -> None:
    again = f"if an earlier version wrote it, tacit train --resume --out {run.path} writes it again"
    if not run.certificate.exists():
        raise LedgerError(f"{run.certificate} is missing; write it again with {RESUME}")
    try:
        stored = run.read_json(run.certificate)
    except RunError as error:
        raise LedgerError(str(error)) from error
    if not isinstance(stored, dict):
        raise LedgerError(f"{run.certificate} holds no certificate: do not rely on it")
    if stored != fresh:
        fresh = certificate.issue(entries, earlier=stored)
    if "noise" not in stored:
        fresh = certificate.unmarked(fresh)
    differing = [key for key in {**stored, **fresh} if stored.get(key) != fresh.get(key)]
    if differing:
        raise LedgerError(
            f"{run.certificate} does not say what the ledger supports ({', '.join(differing)}):"
            f" do not rely on it; {again}"
        )
    text = run.certificate_text
    if not text.exists() or text.read_text("utf-8") != certificate_text.as_text(fresh):
        raise LedgerError(
            f"{text} does not say what the ledger supports: do not rely on it; {again}"
        )
