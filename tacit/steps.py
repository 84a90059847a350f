"""Private steps in the right order: pay, write the payment to disk, then update.

This is the lower level for people's own loops, and what `tacit.fit` itself drives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

import torch
from dp_accounting import DpEvent
from torch import nn

from tacit.clipping.contract import Batch, LossFunction
from tacit.errors import ArgumentError, BudgetError, MixedRecordsError, ReplayError, RunError
from tacit.fixed_state import FixedState
from tacit.independence import IndependenceGuard
from tacit.methods.base import Method
from tacit.noise.source import RandomSource
from tacit.noise.sums import SumLog
from tacit.privacy import events
from tacit.privacy.ledger import Ledger
from tacit.state import TrainingState


class Steps:
    """The steps of one run, each in the ledger before its update.

    Guarantee: when an update has been applied, the ledger on disk holds a charge for it. A step
    that was charged before a crash and is repeated bit for bit is the same release and is not
    charged again. A step that would noise another sum raises `ReplayError` before any noise is
    drawn: it needs a new key and a charge of its own. No step is taken that the promise does not
    cover. After every step all buffers and frozen parameters have their initial bits, but for
    those that the method declares. Proofs: docs/proofs/resume.md, docs/proofs/released_state.md.
    """

    def __init__(
        self,
        method: Method,
        state: TrainingState,
        ledger: Ledger,
        source: RandomSource,
        generation: int,
        guard: IndependenceGuard,
    ) -> None:
        self.method = method
        self.state = state
        self.ledger = ledger
        self._source = source
        self._generation = generation
        charges = [entry.body for entry in ledger.entries if entry.kind == "charge"]
        self._spent = Counter(events.from_json(charge["event"]) for charge in charges)
        self._paid = {
            charge["step"]: events.from_json(charge["event"])
            for charge in charges
            if charge["generation"] == generation and charge["step"] >= state.step
        }
        self._log = source.log or SumLog()
        self._asked = -1, True
        self._pending: tuple[Batch, ...] | None = None
        self._interrupted = False
        self._guard = guard
        self.fixed = FixedState(state.model, method.promise.changing_state)

    def spent(self) -> DpEvent:
        """Everything that the ledger charges so far, as one event."""
        return events.counted(self._spent)

    def as_released(self) -> AbstractContextManager[None]:
        """The model as it would be released now, beside its weights."""
        self.sync()
        return self.method.as_released()

    def sync(self) -> None:
        """Put the log of noised sums on disk, before anything computed from them leaves."""
        self._log.sync()

    def close(self) -> None:
        """Close the ledger and the log; no further step can be taken."""
        self._log.close()
        self.ledger.close()

    @property
    def whole(self) -> bool:
        """Whether the last step was taken to its end, so that the state may be saved."""
        return not self._interrupted

    @property
    def stopped(self) -> bool:
        """Whether the method has ended the run before its last promised step."""
        return self.method.stopped and self.state.step < self.method.promise.steps

    @property
    def remaining(self) -> int:
        """Steps that can still be taken: paid for but not yet repeated, or within the budget.

        A run that has paid for everything and has nothing to show for it is refused.
        """
        if self.stopped:
            return 0
        affordable = self.method.promise.steps - self._spent.total() + len(self._paid)
        left = max(0, min(affordable, self.method.promise.steps - self.state.step))
        if left and self._admitted():
            return left
        if self._spent and self.state.step == 0:
            raise BudgetError(
                "the budget was spent before anything was saved, and the lost steps cannot be"
                " repeated with the same random numbers; start a new run with a budget of its own"
            )
        return 0

    def advance(self, loss: LossFunction, *, durable: bool = True) -> None:
        """One step on the records that the method draws.

        Args:
            loss: Returns one loss per record.
            durable: Put the log of noised sums on disk with this step. A loop that turns it off
                must call `sync` before the weights, or anything computed from them, leave it.
        """
        self._take(loss, None)
        if durable:
            self.sync()

    def __iter__(self) -> Iterator[Batch]:
        """The drawn batch of each step, for loops of one's own; call `step` once for each.

        Change records inside the loss function: a changed batch is refused by `step`, unless
        independence of records is assumed.
        """
        while self.remaining:
            self._pending = tuple(self.method.draw(self.state.step))
            yield _joined(self._pending)
            if self._pending is not None:
                raise ArgumentError(
                    "the last batch was not used: call step(loss) for every batch, even an empty"
                    " one, or the sampling is no longer what is accounted for"
                )

    def step(self, loss: LossFunction, batch: Batch | None = None) -> None:
        """One private update on the batch just drawn, or on an equal `batch`; on one made from it
        only where independence of records is assumed."""
        if self._pending is None:
            raise ArgumentError("step was called without a batch: iterate over the steps first")
        pending, self._pending = self._pending, None
        if batch is not None:
            cut = _cut(batch, pending)
            self._guard.check_batch(_equal(cut, pending))
            pending = cut
        self._take(loss, pending)
        self.sync()

    def _take(self, loss: LossFunction, batches: tuple[Batch, ...] | None) -> None:
        if self._interrupted:
            raise RunError(
                "the last step was interrupted half way; continue from the last save with resume"
            )
        step = self.state.step
        self._check(loss, step, batches)
        self._interrupted = True
        self._pay(step)
        self._log.begin(step)
        with self.fixed.kept(), torch.random.fork_rng(devices=[]):
            _reseed(self._source.torch_seed("dropout", step), self.state.model)
            self.state.model.train()
            drawn = self.method.draw(step) if batches is None else batches
            self._step(step, loss, drawn)
        if self.method.updated and self.state.average is not None:
            self.state.average.update(self.state.model, step)
        self.state.step = step + 1
        self._interrupted = False

    def _step(self, step: int, loss: LossFunction, drawn: Iterable[Batch]) -> None:
        """The method's step. Where it sees records mix, the ledger says so."""
        try:
            self.method.step(step, loss, drawn)
        except MixedRecordsError:
            self.ledger.append("mixed", {"step": step})
            raise

    def _check(self, loss: LossFunction, step: int, batches: tuple[Batch, ...] | None) -> None:
        """Refuse a loss or model that mixes records. If steps were taken before, their charges did
        not cover what they released, so the ledger says that the run cannot be certified."""
        try:
            self._guard(loss, step, lambda: self.method.draw(step) if batches is None else batches)
        except MixedRecordsError:
            if self._spent:
                self._interrupted = True
                self.ledger.append("mixed", {"step": step})
            raise

    def _admitted(self) -> bool:
        """Whether the method goes on: asked once for each step, as it may take time."""
        step = self.state.step
        if step in self._paid:
            return True
        if self._asked[0] != step:
            self._asked = step, self.method.admits(self._spent, step)
        return self._asked[1]

    def _pay(self, step: int) -> None:
        if step in self._paid:
            paid = self._paid.pop(step)
            if paid not in (self.method.charge(step), self.method.owed(step, self._spent)):
                raise ReplayError(
                    f"step {step} was charged before the run was interrupted, as another release"
                    " than it would be now: something outside the recipe has changed since, so the"
                    " step cannot be repeated"
                )
            return
        if self._spent.total() >= self.method.promise.steps or not self._admitted():
            raise BudgetError(
                f"the budget is spent, or all {self.method.promise.steps} promised steps are taken;"
                " start a new run with a budget of its own"
            )
        event = self.method.owed(step, self._spent)
        self.ledger.charge(step, self._generation, event)
        self._spent[event] += 1


def _joined(pieces: tuple[Batch, ...]) -> Batch:
    if not pieces:
        return ()
    return tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))


def _equal(some: tuple[Batch, ...], others: tuple[Batch, ...]) -> bool:
    """Whether two sequences of micro-batches hold the same values."""
    return len(some) == len(others) and all(
        len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        for one, other in zip(some, others, strict=True)
    )


def _reseed(seed: int, model: nn.Module) -> None:
    """Seed the generators that the model can draw from.

    `torch.manual_seed` visits every kind of device, which takes as long as a small model's step.
    """
    torch.default_generator.manual_seed(seed)
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        torch.manual_seed(seed)


def _cut(batch: Batch, pieces: tuple[Batch, ...]) -> tuple[Batch, ...]:
    """`batch` in micro-batches of the sizes that were drawn."""
    sizes = [len(piece[0]) for piece in pieces]
    if batch and len(batch[0]) != sum(sizes):
        raise ArgumentError(
            "the batch given to step has another number of rows than the one drawn; records must"
            " not be added or left out"
        )
    return tuple(zip(*(part.split(sizes) for part in batch), strict=True)) if sizes else ()
