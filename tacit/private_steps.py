"""Private steps for people's own loops, on the same code as `fit`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit.assemble import Facts, assemble
from tacit.clipping.contract import Batch, LossFunction
from tacit.config import Recipe
from tacit.data.batches import as_records
from tacit.errors import ArgumentError
from tacit.journal import Journal
from tacit.loop import Result, chosen, directory, finish, started
from tacit.losses import cross_entropy
from tacit.privacy import accountants
from tacit.progress import Silent


class PrivateSteps:
    """Yields the method's batches; `step(loss)` makes one private update from the last one.

    Guarantee: every update is in the ledger on disk before it is applied, and the steps together
    cost no more than the budget. A resumed loop draws new noise and pays again for steps it lost,
    as its loss and batches are not the library's own; with correlated noise it cannot be resumed.
    The batches themselves are private: only the model's weights, and what is computed from them,
    may leave the loop.

    >>> import tempfile, torch, tacit
    >>> x, y = torch.randn(200, 4), torch.randint(0, 2, (200,))
    >>> steps = tacit.PrivateSteps(torch.nn.Linear(4, 2), (x, y), epsilon=2, epochs=1,
    ...                            batch_size=50, out=tempfile.mkdtemp() + "/run")
    >>> for batch in steps:
    ...     steps.step(tacit.cross_entropy)
    >>> steps.finish().epsilon <= 2
    True
    """

    def __init__(
        self,
        model: nn.Module,
        train: object,
        *,
        optimizer: torch.optim.Optimizer | str | None = None,
        out: str | Path | None = None,
        resume: bool = False,
        public: object | None = None,
        recipe: Recipe | None = None,
        **settings: Any,
    ) -> None:
        self._recipe, own = chosen(model, recipe, optimizer, settings)
        records = as_records(train)
        self._run = directory(out, resume)
        with started(self._run, resume):
            self._steps = assemble(
                model,
                records,
                self._recipe,
                self._run,
                Facts(),
                public=None if public is None else as_records(public),
                optimizer=own,
                resume=resume,
                repeatable=False,
                own_loop=True,
            )
        self._result: Result | None = None
        self._journal = Journal(
            self._steps, self._recipe, len(records), None, cross_entropy, Silent()
        )

    def __len__(self) -> int:
        """Steps that are left."""
        return self._steps.remaining

    def __iter__(self) -> Iterator[Batch]:
        """The records drawn for each step; empty ones must be stepped too."""
        return iter(self._steps)

    def step(self, loss: LossFunction, batch: Batch | None = None) -> None:
        """One private update.

        `loss(model, batch)` returns one loss per row. It is checked that no row's loss depends on
        other records before a loss is first used, so define it once. Records may be changed inside
        it; a `batch` that differs from the drawn one is accepted only with assume_independent=True.
        """
        if self._result is not None:
            raise ArgumentError("the run is finished and its key erased; start a new one")
        self._steps.step(loss, batch)

    @property
    def epsilon(self) -> float:
        """ε proven for the steps taken so far."""
        relation = self._steps.method.promise.relation
        return accountants.epsilon(self._steps.spent(), self._recipe.privacy.delta, relation)

    def checkpoint(self) -> None:
        """Save the state, so that `resume=True` goes on from here."""
        if self._recipe.method.correlated:
            raise ArgumentError(
                "a loop of one's own with correlated noise cannot be resumed, so there is nothing"
                " to save: use tacit.fit, or method dpsgd"
            )
        if not self._steps.whole:
            raise ArgumentError("the last step was interrupted half way; its state is not saved")
        self._steps.fixed.check()
        self._journal.stamp()
        self._run.save_checkpoint(self._steps.state.snapshot())

    def finish(self) -> Result:
        """Release the weights with their certificate and report, and erase the key.

        Refused after a step that was interrupted half way: weights that it left are not what its
        charge covers where a test decides what is kept.
        """
        if self._result is None and not self._steps.whole:
            raise ArgumentError(
                "the last step was interrupted half way, so nothing is released; go on from the"
                " last save with resume=True and finish then"
            )
        if self._result is None:
            self._result = finish(self._steps, self._journal.metrics(Facts()), self._run)
        return self._result
