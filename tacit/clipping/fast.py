"""Exact per-record clipping in one forward pass and one backward pass for input gradients."""

from __future__ import annotations

import sys
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import nn

from tacit.clipping.contract import (
    Batch,
    ClippedSum,
    ClippingRule,
    Layout,
    LossFunction,
    check_losses,
)
from tacit.clipping.layers import ALONE, READERS, REWRITES, REWRITES_AND_QUICKER, RULES
from tacit.clipping.layers.axis import Axis, Rows, rows_of
from tacit.clipping.layers.chains import chains_among
from tacit.clipping.layers.choice import Chooser, give_back_memory
from tacit.clipping.layers.fallback import NotPerRecordError, Unit
from tacit.clipping.layers.interception import DifferentiatedTwiceError, Interception
from tacit.clipping.layers.passes import probe, recorded_backward
from tacit.clipping.layers.reading import read_backward, uses_read
from tacit.clipping.layers.recording import Recording
from tacit.clipping.layers.slots import Slots
from tacit.clipping.layers.totals import Totals
from tacit.clipping.layers.uses import RecordsMixedError, SmallerBatchError
from tacit.clipping.layers.validation import (
    refuse_dependence,
    refuse_mixing,
    suspects_among,
)
from tacit.clipping.layers.watching import UnreadableError, Watch
from tacit.clipping.layers.world import World
from tacit.errors import MixedRecordsError, ModelError
from tacit.structure import Structure

DEFAULT_MEMORY_CEILING = 512 << 20


class FastEngine:
    """Exact clipping without per-record gradients, except where they are the cheapest way.

    Guarantee: the same sum as `ReferenceEngine` up to rounding, for any model whose loss keeps
    records apart; where parts of a record's gradient cancel so far that rounding hides the rest,
    it is clipped to less than the bound, never to more. Every use of a trainable parameter is
    measured: by a layer rule, by per-record gradients of the module around it, or not at all, and
    then a `ModelError` names it. A model that mixes records is refused, also where it does so
    from some step on because a module was replaced. Where records lie in a layer is found out once,
    and anew in every batch in which rows are picked by their content: by an index, a mask, a sort.
    The model is left as it was, also after an exception, and no gradient or attribute is put on it.

    `memory_ceiling` bounds, in bytes, the scratch memory of any one layer's algorithm, and all
    gradients that modules without a rule write out: where a batch needs more it is taken in parts.
    Algorithms work in blocks of at most 16 MiB, which a lower ceiling does not make smaller.
    What probes and trials of algorithms took is given back to the system at once.
    `deterministic` chooses between algorithms by a fixed estimate of their cost instead of by
    timing them, so that the same batches give the same bits in another process.

    >>> import torch
    >>> from tacit.clipping.rules import Flat
    >>> model = torch.nn.Linear(3, 2)
    >>> engine = FastEngine(model, Flat(1.0))
    >>> batch = (torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))
    >>> def loss(model, batch):
    ...     return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
    >>> engine.clipped_sum(loss, [batch], views=1).vector.shape
    torch.Size([8])
    """

    def __init__(
        self,
        model: nn.Module,
        rule: ClippingRule,
        *,
        deterministic: bool = False,
        memory_ceiling: int = DEFAULT_MEMORY_CEILING,
    ) -> None:
        structure = Structure(model)
        refuse_mixing(model, suspects_among(structure.modules))
        self.layout = Layout.of(model, rule.grouping)
        self._model = model
        self.rule = rule
        self._chooser = Chooser(deterministic=deterministic, memory_ceiling=memory_ceiling)
        self._take(structure)

    def clipped_sum(self, loss: LossFunction, batches: Iterable[Batch], views: int) -> ClippedSum:
        structure = self._structure.current()
        if structure is not self._structure:
            self._take(structure)
        refuse_mixing(self._model, self._suspects)
        slots = self._slots
        frozen = [name for name, p in slots.parameters.items() if not p.requires_grad]
        if frozen:
            raise ModelError(
                f"the parameter {frozen[0]!r} was frozen after the clipping engine was made; freeze"
                " parameters before, or make a new engine"
            )
        totals: Totals | None = None
        steady = self._steady
        for batch in batches:
            for recording in self._recordings(loss, batch, rows_of(batch, views), slots):
                totals = totals or self._totals()  # only now that activations are gone
                with torch.no_grad():
                    recording.finish(self.rule, totals)
                if self._steady and not steady:
                    steady = True
                    give_back_memory()
        vector = (totals or self._totals()).complete()
        return ClippedSum(vector, self.layout, self.rule.bounds, self.rule.shares)

    def _totals(self) -> Totals:
        first = next(iter(self._slots.parameters.values()))
        return Totals(self.layout, first.dtype, first.device)

    def _take(self, structure: Structure) -> None:
        """Take the model as it is now; nothing that was found out about another one holds."""
        named = structure.parameters
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            if name not in named or named[name].shape != shape:
                raise ModelError(
                    f"the trainable parameter {name!r} has gone, or has another shape, since the"
                    " clipping engine was made; make a new one for the model as it is now"
                )
        kinds = {(p.dtype, p.device) for name, p in named.items() if name in self.layout.names}
        if len(kinds) > 1:
            described = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise ModelError(
                f"trainable parameters are {described}; one clipped sum cannot hold them all: give"
                " the model one type and one device with model.to(…)"
            )
        self._slots = Slots({name: named[name] for name in self.layout.names}, self.layout)
        self._suspects = suspects_among(structure.modules)
        self._units: dict[str, Unit] = {}
        self._chains = chains_among(structure.modules, self._slots)
        self._known: dict[Hashable, Axis] = {}
        self._declined: set[Hashable] = set()
        self._steady = self._readable = False
        self._structure = structure

    def _recordings(
        self, loss: LossFunction, batch: Batch, rows: Rows, slots: Slots
    ) -> Iterator[Recording]:
        """One recording of a micro-batch, or several of parts of it: where only that can tell
        records apart, or keeps to the memory ceiling."""
        if not rows.count:
            return
        try:
            yield self._record(loss, batch, rows, slots)
        except SmallerBatchError as smaller:
            size = smaller.records * rows.views
            for part in zip(*(t.split(size) for t in batch), strict=True):
                yield from self._recordings(loss, part, rows_of(part, rows.views), slots)

    def _record(self, loss: LossFunction, batch: Batch, rows: Rows, slots: Slots) -> Recording:
        """Record a micro-batch: intercepted at first, then read off its graph where that works and
        no layer has a faster way that only interception can take.

        What can be read is read from the first batch on, so that the bits of a sum do not depend
        on how many came before it in this process.
        """
        if not self._steady:
            before = World(self._structure)
            recording = self._intercepted(loss, batch, rows, slots, before)
            odd = self._units or recording.moved or before.buffers_changed
            chained = {name for chains in self._chains for name in chains.names}
            all_chained = chained.issuperset(use.name for use in recording.uses)
            self._readable = not (odd or recording.better_intercepted or all_chained)
            if not self._readable:
                return recording
            recording.discard()
            del recording
            before.restore()
        if not self._readable:
            return self._intercepted(loss, batch, rows, slots, None)
        before = World(self._structure, buffers=False)
        try:
            return self._read(loss, batch, rows, slots)
        except UnreadableError:
            self._readable = False
            before.restore()
            return self._intercepted(loss, batch, rows, slots, before)

    def _recording(self, rows: Rows, slots: Slots) -> Recording:
        groups = len(self.rule.bounds)
        return Recording(slots, rows, groups, self._chooser, self._known, self._declined)

    def _read(self, loss: LossFunction, batch: Batch, rows: Rows, slots: Slots) -> Recording:
        """Record without interception; an `UnreadableError` where that cannot be done."""
        recording = self._recording(rows, slots)
        with torch.enable_grad(), Watch(rows) as watch:
            losses = loss(self._model, batch)
        if watch.stopped:
            raise UnreadableError
        check_losses(losses, rows.count)
        found = uses_read(losses, slots, READERS)
        if found:
            read_backward(losses, torch.full_like(losses, 1 / rows.views), found, recording)
        return recording

    def _intercepted(
        self, loss: LossFunction, batch: Batch, rows: Rows, slots: Slots, world: World | None
    ) -> Recording:
        """Record by interception; as often as it takes to find which modules need to be units."""
        while True:
            allowed = self._records_at_once(slots)
            if rows.records > allowed:
                raise SmallerBatchError(allowed)
            slots.forget_lookups()
            recording = self._recording(rows, slots)
            try:
                escaped = self._attempt(loss, batch, recording)
            except NotPerRecordError as error:
                self._enclose([error.name], error.reason)
            except DifferentiatedTwiceError:
                self._enclose(["model"], "the loss takes derivatives of parts of the model")
            except RecordsMixedError as error:
                if not error.use.final:
                    self._declined.add(error.use.key)
                elif recording.moved and "" not in self._units:
                    self._enclose([error.use.name], "its rows are picked by their content")
                else:
                    raise MixedRecordsError(
                        "the loss of one record depends on other records, seen at"
                        f" {error.use.name!r}: no record's influence can be bounded; remove what"
                        " mixes records, or give the batch a dimension of its own"
                    ) from None
            except SmallerBatchError:
                if world is not None:
                    world.restore()
                raise
            else:
                if not escaped:
                    if world is not None and not self._steady and rows.records > 1:
                        before, drawn = World(self._structure), world.random_numbers_drawn
                        refuse_dependence(partial(loss, self._model), batch, rows, before, drawn)
                        self._steady = True
                    return recording
                self._enclose(escaped, "it is used outside the model's forward pass")
            recording.discard()
            if world is not None:
                world.restore()

    def _records_at_once(self, slots: Slots) -> int:
        """How many records' gradients of modules without a rule fit below the ceiling."""
        each = sum(unit.bytes_per_record(slots) for unit in self._units.values())
        return max(1, self._chooser.memory_ceiling // each) if each else sys.maxsize

    def _attempt(self, loss: LossFunction, batch: Batch, recording: Recording) -> list[str]:
        """Run forward and backward; the parameters that were reached past every rule."""
        units = self._units.values()
        rewrites = REWRITES if units else REWRITES_AND_QUICKER
        replacements = units or (self._chains if self._steady else ())
        with torch.enable_grad(), Interception(recording, replacements, RULES, rewrites, ALONE):
            losses = loss(self._model, batch)
            recording.doubt_if_moved()
            with torch._C.DisableTorchFunction():
                check_losses(losses, recording.rows.count)
                if not losses.requires_grad:
                    return []
                seeds = torch.full_like(losses, 1 / recording.rows.views)
            retain = recording.unsettled
            escaped = recorded_backward(losses, seeds, recording, retain)
            if recording.unverified and not escaped:
                probe(losses, recording)
                escaped = recorded_backward(losses, seeds, recording, False)
                if recording.unverified:
                    raise ModelError("gradients changed between two passes over the same graph")
        return escaped

    def _enclose(self, names: Sequence[str], reason: str) -> None:
        """Let the innermost module around each name that is not yet a unit become one."""
        self._readable = False
        modules = dict(self._model.named_modules())
        units = [_enclosing(name, modules, self._units) for name in names]
        for name, unit in zip(names, units, strict=True):
            if unit is None:
                raise ModelError(
                    f"the gradient of {name or 'the model'!r} cannot be taken record by record:"
                    f" {reason}"
                )
            if unit not in self._units:
                self._units[unit] = Unit(unit, modules[unit])
                self._units[unit].notice()


def _enclosing(name: str, modules: Container[str], units: Container[str]) -> str | None:
    """The path of the innermost module around a parameter or module that is not yet a unit."""
    while name:
        name = name.rpartition(".")[0]
        if name in modules and name not in units:
            return name
    return None
