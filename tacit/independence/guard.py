"""What is done before every step so that records are independent as the certificate says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MethodType

import torch
from torch import nn

from tacit.clipping.contract import Batch, LossFunction
from tacit.clipping.engines import engine_for
from tacit.clipping.mini_sets import MiniSetEngine, OwnPass, SetPass, mean_gradient
from tacit.config import Recipe
from tacit.data.batches import Records
from tacit.errors import ArgumentError, ModelError
from tacit.independence.constants import LossConstants
from tacit.independence.construction import obstacle
from tacit.independence.replacements import EXTREME, REPLACEMENTS
from tacit.independence.rerun import LAST, WAYS_OUT, Alone, Rerun
from tacit.independence.tiers import CHECK_EVERY, Independence, Tier, Unit
from tacit.losses import blank_record, check_labels, cross_entropy
from tacit.method_sections import BatchClippingRecipe, SanitizationRecipe, SelectiveRecipe

_REMEMBERED_LOSSES = 64
_MOST_UNITS = 16
_FOR_THE_LAST = (REPLACEMENTS[0], EXTREME)


class IndependenceGuard:
    """Called before every step is paid for; raises where the promised tier does not hold.

    By construction: the layers are looked at again, as a model can be changed between steps.
    Checked: each loss function before its first use with every kind of public rows, and from then
    on at every `CHECK_EVERY`th step with one kind after the other. Which step is checked depends
    on its number alone. Assumed: nothing.

    Labels are checked for `cross_entropy` before its first use.
    """

    def __init__(
        self,
        model: nn.Module,
        records: Records,
        recipe: Recipe,
        independence: Independence | None,
        set_pass: SetPass | None = None,
        own_loop: bool = False,
    ) -> None:
        self._model = model
        self._records = records
        self._batch_size = min(len(records), recipe.training.micro_batch)
        self.independence = independence
        self._dims = blank_record(records)[0].dim()
        self._views = recipe.training.views
        self._alone = _alone(model, recipe, independence, set_pass)
        ceiling = recipe.run.memory_ceiling << 20
        self._rerun = Rerun(model, self._views, ceiling, self._alone)
        self._evaluates = isinstance(recipe.method, SelectiveRecipe | SanitizationRecipe)
        self._passed: list[LossFunction] = []
        self._constants = LossConstants()
        self._own_loop = own_loop

    def __call__(self, loss: LossFunction, step: int, draw: Callable[[], Iterable[Batch]]) -> None:
        """Refuse `loss` for step `step` on the batches that `draw` returns."""
        known = any(_same(loss, each) for each in self._passed)
        if not known:
            check_labels(self._records, self._model, loss)
        if self.independence is not None:
            if self.independence.tier is Tier.CHECKED:
                if self._own_loop:
                    self._constants.check(loss)
                self._check(loss, step, draw, known)
            elif self.independence.by_layers:
                self._check_layers(loss)
        if not known:
            self._passed = [*self._passed[1 - _REMEMBERED_LOSSES :], loss]

    def check_batch(self, unchanged: bool) -> None:
        """Refuse a batch that was changed outside the library, unless independence is assumed."""
        if unchanged or self.independence is None or self.independence.tier is Tier.ASSUMED:
            return
        raise ArgumentError(
            "the batch given to step differs from the one drawn, and whether each of its rows"
            " depends on one record only cannot be checked (trimming a batch to its longest text"
            " mixes records); change records inside the loss function, which is checked, or set"
            " assume_independent=True, which the certificate will say"
        )

    def _check_layers(self, loss: LossFunction) -> None:
        sets = self._alone is not None and self._alone.cut
        reason = obstacle(self._model, self._dims, whole_sets=sets)
        if reason is None and loss is not cross_entropy:
            reason = "the loss is not tacit.cross_entropy"
        if reason is not None:
            raise ModelError(
                "records were independent by construction when the run began, and the certificate"
                f" says so, but now {reason}; leave model and loss as they were"
            )

    def _check(
        self, loss: LossFunction, step: int, draw: Callable[[], Iterable[Batch]], known: bool
    ) -> None:
        turn, rest = divmod(step, CHECK_EVERY)
        if known and rest:
            return
        if self._alone is not None:
            batch = self._units(draw, self._alone)
        else:
            found = next((b for b in draw() if self._rerun.can_compare(b)), None)
            batch = found or self._first_records(self._batch_size)
        if known:
            kinds = [REPLACEMENTS[turn % len(REPLACEMENTS)]]
            self._rerun.compare(loss, batch, kinds, turn)
            if self._evaluates:
                self._rerun.compare(loss, batch, kinds, turn, evaluation=True)
            return
        if self._alone is not None:
            self._rerun.compare_moved(loss, batch)
        self._rerun.compare(loss, batch, REPLACEMENTS, turn)
        self._rerun.compare(loss, batch, _FOR_THE_LAST, LAST)
        if self._evaluates:
            self._rerun.compare(loss, batch, _FOR_THE_LAST, LAST, evaluation=True)
        if self._alone is None:
            self._rerun.compare_alone(loss, batch)

    def _units(self, draw: Callable[[], Iterable[Batch]], alone: Alone) -> Batch:
        """A few whole units of the step's batches; the first records where the step has too few."""
        most, least = _MOST_UNITS * alone.rows, 2 * alone.rows
        pieces: list[Batch] = []
        rows = 0
        for piece in draw():
            whole = len(piece[0]) // alone.rows * alone.rows if piece else 0
            if whole:
                pieces.append(tuple(part[: min(whole, most - rows)] for part in piece))
                rows += len(pieces[-1][0])
            if rows >= least:
                return tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))
        return self._first_records(least // self._views)

    def _first_records(self, count: int) -> Batch:
        """A batch to check where the step's own is empty or a single record; of whole mini-sets
        there may be too few records for two, so they are taken again."""
        cut = self._alone is not None and self._alone.cut
        places = torch.arange(count if cut else min(count, len(self._records)))
        batch = self._records.batch(places % len(self._records))
        batch = tuple(part.repeat_interleave(self._views, 0) for part in batch)
        if not self._rerun.can_compare(batch):
            raise ModelError(
                "whether records are independent cannot be checked in batches of a single record;"
                f" {WAYS_OUT}"
            )
        return batch


def _alone(
    model: nn.Module,
    recipe: Recipe,
    independence: Independence | None,
    set_pass: SetPass | None,
) -> Alone | None:
    """How the units of a run are computed by themselves, if they are."""
    if independence is None or independence.unit is None:
        return None
    views, unit = recipe.training.views, independence.unit
    if unit is Unit.RECORD:
        name = recipe.run.engine
        return Alone(unit.value, views, lambda rule: engine_for(model, rule, name))
    assert isinstance(recipe.method, BatchClippingRecipe)
    rows = views * (recipe.training.batch_size // recipe.method.mini_sets)
    own = mean_gradient if set_pass is None else OwnPass(set_pass)
    return Alone(unit.value, rows, lambda rule: MiniSetEngine(model, rule, own), cut=True)


def _same(one: LossFunction, other: LossFunction) -> bool:
    """Every access to a bound method makes a new object."""
    if isinstance(one, MethodType) and isinstance(other, MethodType):
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    return one is other
