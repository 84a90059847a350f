"""Training: the one loop, and `fit` around it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit.assemble import Facts, assemble
from tacit.clipping.contract import LossFunction
from tacit.clipping.mini_sets import SetPass
from tacit.config import Recipe
from tacit.data.batches import Records, as_records
from tacit.errors import ArgumentError, ReplayError
from tacit.journal import Journal
from tacit.losses import check_labels, cross_entropy
from tacit.models import batch_norm
from tacit.optim import weights_swapped
from tacit.privacy import certificate, certificate_text, ledger
from tacit.progress import Silent, Watcher
from tacit.report import values, write_report
from tacit.rundir import RunDir
from tacit.steps import Steps


@dataclass(frozen=True)
class Result:
    """A finished run: the three numbers, how well it does, and where everything lies."""

    path: Path
    certificate: dict[str, Any]
    metrics: dict[str, Any]

    def __str__(self) -> str:
        accuracy = "" if self.accuracy is None else f"accuracy {values.percent(self.accuracy)}; "
        return f"{accuracy}{self.certificate['verdict']} All of it: {self.path}"

    @property
    def epsilon(self) -> float:
        """ε proven, rounded up; infinite without a guarantee."""
        guarantee = self.certificate["guarantee"]
        return float(guarantee["epsilon"]) if guarantee else math.inf

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the evaluation records, if there were any and labels name outputs."""
        found = (self.metrics["final"] or {}).get("accuracy")
        return None if found is None else float(found)

    @property
    def report(self) -> Path:
        """The HTML page."""
        return self.path / "report.html"


def fit(
    model: nn.Module,
    train: object,
    *,
    test: object | None = None,
    public: object | None = None,
    recipe: Recipe | None = None,
    loss: LossFunction = cross_entropy,
    optimizer: torch.optim.Optimizer | str | None = None,
    set_pass: SetPass | str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    facts: Facts | None = None,
    **settings: Any,
) -> Result:
    """Train `model` on `train` under a privacy budget; the model ends with the released weights.

    Guarantee: what lies in the run directory once it is finished, the weights included, is
    (ε, δ)-differentially private under the recipe's relation; the certificate says what that
    covers. `settings` are recipe values by name, such as epsilon=3, epochs=10, clip=1.0. `test`
    holds public records for evaluation, `public` ones on which thresholds and statistics may be
    estimated; neither get any protection. `set_pass` computes what batch clipping clips of a
    mini-set, by a function of your own or by name.

    >>> import tempfile, torch, tacit
    >>> x, y = torch.randn(500, 4), torch.randint(0, 2, (500,))
    >>> run = tacit.fit(torch.nn.Linear(4, 2), (x, y), epsilon=2, epochs=2, batch_size=100,
    ...                 out=tempfile.mkdtemp() + "/run")
    >>> run.epsilon <= 2
    True
    """
    if isinstance(set_pass, str):
        settings, set_pass = {**settings, "set_pass": set_pass}, None
    recipe, own = chosen(model, recipe, optimizer, settings)
    records = as_records(train)
    tested = None if test is None else as_records(test)
    known = None if public is None else as_records(public)
    if settings.get("mend"):
        raise ArgumentError(
            "mend is for recipes that name their network; for a model of your own call"
            " tacit.models.mended(model) and give the result to fit"
        )
    check_labels(records, model, loss)
    if tested is not None:
        check_labels(tested, model, loss, "test")
    if known is not None:
        check_labels(known, model, loss, "public")
    run = directory(out, resume)
    if resume and released(run):
        run.erase_private()
        return certified(run)
    facts = facts or _own_facts(tested)

    def opened(resume: bool, renew: bool = False) -> Steps:
        with started(run, resume):
            return assemble(
                model,
                records,
                recipe,
                run,
                facts,
                public=known,
                loss=loss,
                optimizer=own,
                resume=resume,
                repeatable=loss is cross_entropy,
                renew=renew,
                set_pass=set_pass,
            )

    steps = opened(resume)
    with watcher or Silent() as watching:
        try:
            journal = Journal(steps, recipe, len(records), tested, loss, watching)
            _train(steps, journal, run, loss)
        except ReplayError:
            steps.close()
            steps = opened(resume=True, renew=True)
            journal = Journal(steps, recipe, len(records), tested, loss, watching)
            _train(steps, journal, run, loss)
    return finish(steps, journal.metrics(facts), run)


def _train(steps: Steps, journal: Journal, run: RunDir, loss: LossFunction) -> None:
    """The only training loop. Interrupted at any instant, it resumes from the last save.

    The log of noised sums is on disk before the model leaves the loop: to a checkpoint, to an
    evaluation (`Steps.as_released`), or to the caller, also by an exception.
    """
    try:
        while True:
            if journal.checkpoint_due():
                _save(steps, journal, run)
            if not steps.remaining:
                return
            steps.advance(loss, durable=False)
            journal.after_step()
    except KeyboardInterrupt:
        if steps.whole:
            _save(steps, journal, run)
        raise
    finally:
        steps.sync()


def _save(steps: Steps, journal: Journal, run: RunDir) -> None:
    steps.sync()
    journal.stamp()
    run.save_checkpoint(steps.state.snapshot())


def finish(steps: Steps, metrics: dict[str, Any], run: RunDir) -> Result:
    """Release the weights, with their hash in the ledger; erase the key; then certify."""
    state = steps.state
    averaged = state.average.values if state.average else None
    steps.fixed.check()
    with weights_swapped(state.model, averaged), steps.as_released():
        weights = state.released_weights()
        steps.fixed.check_released(weights)
    batch_norm.load(state.model, weights)
    digest = run.save_weights(weights)
    if steps.stopped:
        steps.ledger.append("stop", _stop(steps))
    releases = [e.body["weights_sha256"] for e in steps.ledger.entries if e.kind == "release"]
    if releases[-1:] != [digest]:
        steps.ledger.append("release", {"weights_sha256": digest, **_ending(steps)})
    steps.close()
    run.write_json(run.metrics, metrics)
    run.erase_private()
    return certified(run)


def _ending(steps: Steps) -> dict[str, Any]:
    """What is known at the end only: what happened, and what a paper would say it cost."""
    outcome = steps.method.outcome()
    if not outcome:
        return {}
    claim = steps.method.claim(float(steps.ledger.entries[0].body["delta"]))
    claimed = {"claimed": claim.as_json()} if claim else {}
    return {**claimed, "outcome": outcome}


def _stop(steps: Steps) -> dict[str, Any]:
    """Where the method ended the run, and what its paper would say was spent by then."""
    step = steps.state.step
    delta = float(steps.ledger.entries[0].body["delta"])
    claim = steps.method.claim_after(step, delta)
    return {"step": step, "claimed": claim.epsilon if claim else None}


def released(run: RunDir) -> bool:
    """Whether the weights are out with all that belongs to them, and only the end is missing."""
    entries = [entry for entry in ledger.read(run.ledger) if entry.kind != "audit"]
    if not run.weights.exists() or not run.metrics.exists() or entries[-1].kind != "release":
        return False
    return bool(entries[-1].body["weights_sha256"] == run.weights_hash())


def certified(run: RunDir) -> Result:
    """Certificate and report of a run whose key is gone, from its ledger as it is on disk.

    Without privacy no certificate is written, unless to deny a paper's claim; the report says that
    nothing is protected.
    """
    issued = certificate.issue(ledger.read(run.ledger))
    if certificate.is_written(issued):
        run.save_certificate(issued, certificate_text.as_text(issued))
    else:
        run.withhold_certificate()
    write_report(run.path)
    return Result(run.path, issued, run.read_json(run.metrics))


def chosen(
    model: nn.Module,
    recipe: Recipe | None,
    optimizer: torch.optim.Optimizer | str | None,
    settings: dict[str, Any],
) -> tuple[Recipe, torch.optim.Optimizer | None]:
    """The recipe with its settings; an optimizer may be given as an object or by name."""
    if isinstance(optimizer, str):
        settings, optimizer = {**settings, "optimizer": optimizer}, None
    return (recipe or own_recipe(model)).with_settings(**settings), optimizer


def own_recipe(model: nn.Module) -> Recipe:
    """The default recipe for a model and data that have no name."""
    name = type(model).__name__
    return Recipe.parse({"model": {"name": name}, "data": {"name": "own data"}})


def _own_facts(public: Records | None) -> Facts:
    if public is None:
        return Facts()
    return Facts(
        not_covered=("the records given for evaluation",),
        evaluated_on=f"{len(public):,} records given for evaluation",
    )


def directory(out: str | Path | None, resume: bool) -> RunDir:
    """The run directory to make, or the one to continue, its ledger repaired after a crash."""
    if resume:
        if out is None:
            raise ArgumentError("resume needs out: the directory of the run to continue")
        run = RunDir.continued(Path(out))
        ledger.repair(run.ledger)
        return run
    return RunDir.create(Path(out) if out else new_run_path())


@contextmanager
def started(run: RunDir, resume: bool) -> Iterator[None]:
    """A new run that is refused before it begins leaves no directory behind."""
    try:
        yield
    except Exception:
        if not resume:
            run.give_up_unstarted()
        raise


def new_run_path(label: str = "run") -> Path:
    """A fresh directory name under runs/."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{label}-{stamp}"
    path, number = base, 1
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path
