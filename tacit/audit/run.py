"""An audit from beginning to end: attacks, what they show, and where it is written down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.audit.attacks import Attack, Settings, attacks_for
from tacit.audit.verdict import CONFIDENCE, Finding, Status, check_confidence, conclude
from tacit.board import Board
from tacit.config import Recipe
from tacit.data.released import release_of
from tacit.errors import ArgumentError, RunError
from tacit.loop import certified
from tacit.privacy import ledger
from tacit.privacy.ledger import Ledger
from tacit.report.audit import write_audit
from tacit.rundir import RunDir
from tacit.sweep import train_all
from tacit.train import recipe_for, stored_recipe
from tacit.verify import check

Json = dict[str, Any]
DEFAULTS = Settings()


@dataclass(frozen=True)
class Audit:
    """What all attacks together showed; `worst` is the finding that decides."""

    title: str
    findings: tuple[Finding, ...]
    on_training_records: bool

    @property
    def worst(self) -> Finding:
        """The finding with the gravest status, and among those the largest audited ε."""
        order = list(Status)
        return max(self.findings, key=lambda f: (order.index(f.status), f.epsilon))

    def entry(self) -> Json:
        """What the ledger and the certificate keep."""
        worst = self.worst
        return {
            "epsilon": worst.epsilon,
            "delta": worst.delta,
            "confidence": worst.confidence,
            "relation": worst.relation,
            "attack": worst.attack,
            "status": worst.status.value,
            "verdict": worst.verdict,
            "tried": [finding.attack for finding in self.findings],
            "on_training_records": self.on_training_records,
        }

    def as_json(self) -> Json:
        """Everything, as plain values."""
        found = [finding.as_json() for finding in self.findings]
        return {"title": self.title, **self.entry(), "findings": found}


def audit(
    what: str,
    *,
    attacks: Sequence[str] = (),
    changes: dict[str, str] | None = None,
    settings: Settings = DEFAULTS,
    confidence: float = CONFIDENCE,
    jobs: int = 1,
    out: Path = Path("audit"),
    data_dir: Path | None = None,
    board: Board | None = None,
) -> Audit:
    """Attack a finished run, or the training that a recipe describes.

    What is played is kept in `out` and never played twice. audit.json and audit.html in `out` hold
    all figures; a run gets its own copy, an entry in its ledger, and a new certificate and report.

    Guarantee: if everything is as promised, the audited ε exceeds the proven one with probability
    at most 1 − confidence, all attacks together.
    """
    check_confidence(confidence)
    run = RunDir.open(Path(what)) if (Path(what) / "ledger.jsonl").is_file() else None
    if run is None:
        recipe = recipe_for(what, changes or {})
    elif changes:
        raise ArgumentError(f"{what} is a run: its recipe cannot be changed; leave out the changes")
    else:
        recipe = _finished(run)
    _refuse_released(recipe)
    chosen = attacks_for(recipe, run, attacks, out / "played", data_dir, settings)
    tasks = {task.name: task for attack in chosen for task in attack.tasks()}
    train_all(list(tasks.values()), jobs=jobs, data_dir=data_dir, board=board)
    found = tuple(_finding(attack, confidence, len(chosen)) for attack in chosen)
    title = recipe.title or f"{recipe.model.name} on {recipe.data.name}"
    done = Audit(title, found, any(attack.on_training_records for attack in chosen))
    text = json.dumps(done.as_json(), indent=1, ensure_ascii=False) + "\n"
    RunDir(out).write(out / "audit.json", text.encode())
    write_audit(json.loads(text), out / "audit.html")
    if run is not None:
        _record(run, done, text)
    return done


def _refuse_released(recipe: Recipe) -> None:
    """What is trained on a release gives away no more than the release: that is what to attack."""
    path = Path(recipe.data.name)
    if path.is_file() and release_of(path) is not None:
        raise ArgumentError(
            f"{path} was released before, and training on it gives away nothing more: audit"
            f" {path.parent}, where its ledger lies"
        )


def _finding(attack: Attack, confidence: float, attacks: int) -> Finding:
    return conclude(
        attack.name, attack.played(), attack.delta, confidence=confidence, attacks=attacks
    )


def _finished(run: RunDir) -> Recipe:
    check(run.path)
    if not run.finished:
        raise RunError(
            f"{run.path} is not finished; continue it with tacit train --resume --out {run.path}"
        )
    return stored_recipe(run.path)


def _record(run: RunDir, done: Audit, text: str) -> None:
    """Write the audit into the run: its figures, its ledger, certificate and report."""
    run.write(run.path / "audit.json", text.encode())
    entries = ledger.read(run.ledger)
    last = [entry.body for entry in entries if entry.kind == "audit"][-1:]
    if last != [done.entry()]:
        book = Ledger.resume(run.ledger)
        book.append("audit", done.entry())
        book.close()
    certified(run)
