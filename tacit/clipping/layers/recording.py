"""What one micro-batch leaves behind: squared norms per record, and what the sum needs."""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from tacit.clipping.contract import ClippingRule
from tacit.clipping.layers.axis import FIRST, Axis, Rows, candidates
from tacit.clipping.layers.choice import Chooser
from tacit.clipping.layers.contributions import Contribution, Dense, combine
from tacit.clipping.layers.operation import Gradients, Operation, Placement
from tacit.clipping.layers.slots import Slot, Slots
from tacit.clipping.layers.together import Together
from tacit.clipping.layers.totals import Totals
from tacit.clipping.layers.uses import Stage, Use


class Recording:
    """Collects every parameter's per-record gradients during one backward pass.

    Guarantee: the squared norms of group h add up to that of a record's gradient in it over all
    uses of all parameters, cross terms between several uses of one parameter included.
    """

    def __init__(
        self,
        slots: Slots,
        rows: Rows,
        groups: int,
        chooser: Chooser,
        known: dict[Hashable, Axis],
        declined: Container[Hashable],
    ) -> None:
        self.slots = slots
        self.rows = rows
        self.chooser = chooser
        self.known = known
        self.declined = declined
        self.stage = Stage.FORWARD
        self.inside_unit = False
        self.moved = False
        """Whether rows may have been moved by their content, so that nothing known holds."""
        self.better_intercepted = False
        """Whether a layer was taken a faster way than it would have been by itself."""
        self.chains: dict[nn.Module, Any] = {}
        """For modules in which layers run as one, what `clipping.layers.chains` knows of them."""
        self.leaves: list[tuple[str, Tensor]] = []
        self.uses: list[Use] = []
        self.unverified = False
        self.selected: Tensor
        self._squares: list[list[Tensor]] = [[] for _ in range(groups)]
        self._times_used: dict[str, int] = {}
        self._times_run: dict[str, int] = {}
        self._entries: Gradients = []
        self._together = Together(groups)
        self._shared: dict[str, Gradients] = {}

    @cached_property
    def anchor(self) -> Tensor:
        """Empty, and needs a gradient: it makes what it enters part of a graph."""
        return torch.zeros(0, device=self._some.device, requires_grad=True)

    @property
    def _some(self) -> Tensor:
        """A parameter: all have the same type and device."""
        return next(iter(self.slots.parameters.values()))

    def use(self, slots: Sequence[Slot], axes: list[Axis], dims: int) -> Use | None:
        """Register one use of parameters; which use it is follows from the order of calls.

        None when an earlier attempt found that no axis keeps the records of this use apart.
        """
        first = slots[0].name
        key = (first, self._times_used.get(first, 0), dims)
        if key in self.declined:
            return None
        if self.stage is Stage.FORWARD:
            for slot in slots:
                self._times_used[slot.name] = self._times_used.get(slot.name, 0) + 1
        return self._register(first, key, axes, final=False)

    def rows_known(self, slots: Sequence[Slot], dims: int) -> bool:
        """Whether an earlier batch has shown that the next uses of these parameters, in inputs of
        so many dimensions, have one row for each of the batch."""
        if self.moved:
            return False
        for slot in slots:
            key = (slot.name, self._times_used.get(slot.name, 0), dims)
            if key in self.declined:
                return False
            if self.rows.records > 1 and (key, (FIRST,)) not in self.known:
                return False
        return True

    def placement(self, operation: Operation, x: Tensor) -> Placement | None:
        """Where records lie in the only use of a parameter, if an earlier batch has shown it.

        Only for inputs that can be seen to have one row for each of the batch: what else there is
        depends on how a model came to call its layer, which a graph does not tell.
        """
        key = (operation.slots[0].name, 0, x.dim())
        axes = candidates(operation.leading(x), self.rows)
        if axes != [FIRST] or key in self.declined:
            return None
        if self.rows.records > 1 and (key, (FIRST,)) not in self.known:
            return None
        return Placement(FIRST, self.rows, self.chooser)

    def unit_use(self, name: str) -> Use:
        """Register the border of a module that runs record by record."""
        times = self._times_run.get(name, 0)
        key = ("unit", name, times)
        self._times_run[name] = times + 1
        return self._register(name or "the whole model", key, [FIRST], final=True)

    def _register(self, name: str, key: Hashable, axes: list[Axis], *, final: bool) -> Use:
        settled = self.rows.records == 1
        found_among = (key, tuple(axes))
        axis = None if self.moved else self.known.get(found_among)
        use = Use(self, name, key, found_among, axes, settled=settled, final=final)
        if axis is not None:
            use.rely_on(axis)
        self.uses.append(use)
        return use

    def doubt_if_moved(self) -> None:
        """Rely on nothing known where rows were moved by their content, be it after a layer: what
        comes back to it may belong to other records than before."""
        if self.moved and self.rows.records > 1:
            for use in self.uses:
                use.doubt()

    def leaf(self, name: str) -> Tensor:
        """The parameter once per record, differentiable: its gradient is each record's own."""
        value = self.slots.parameters[name].detach()
        leaf = value.expand(self.rows.records, *value.shape).requires_grad_()
        self._times_used[name] = self._times_used.get(name, 0) + 1
        self.leaves.append((name, leaf))
        return leaf

    @property
    def unsettled(self) -> bool:
        """Whether some use has not yet shown where its records lie."""
        return any(not use.settled for use in self.uses)

    def add(self, gradients: Gradients) -> None:
        """Take the per-record gradients of one use."""
        for slot, contribution in gradients:
            if self._times_used.get(slot.name, 0) > 1:
                self._shared.setdefault(slot.name, []).append((slot, contribution))
            else:
                self._measure(slot, contribution)

    def add_leaves(self, gradients: Mapping[int, Tensor]) -> None:
        """Take the gradients of leaves, given by their position in `leaves`."""
        for index, gradient in gradients.items():
            name, _ = self.leaves[index]
            self.add([(self.slots.whole(name), Dense(gradient))])

    def finish(self, rule: ClippingRule, totals: Totals) -> None:
        """Measure what was used more than once, ask the rule for factors, add the sum."""
        for name, gradients in self._shared.items():
            self._measure_shared(name, gradients)
        self._shared.clear()
        self._together.meet(totals)
        squares, finite = self._summed_squares()
        if finite:
            factors = rule.factors(squares.sqrt_())
        else:
            quiet = ~torch.isfinite(squares).all(1)
            norms = squares.masked_fill(quiet[:, None], 0).sqrt()
            factors = rule.factors(norms).masked_fill(quiet[:, None], 0)
            for _, contribution in self._entries:
                contribution.silence(quiet)
            self._together.silence(quiet)
            self._together.meet(totals)
        self._together.sum_up(factors, totals)
        columns = factors.unbind(1) if self._entries else ()
        while self._entries:
            slot, contribution = self._entries.pop()
            total = totals[slot.name]
            within = slot.within(total)
            if totals.holds(slot.name):
                contribution.add_weighted(columns[slot.group], within)
                continue
            totals.written((slot.name,))
            if within is total:
                contribution.write_weighted(columns[slot.group], total)
            else:
                total.zero_()
                contribution.add_weighted(columns[slot.group], within)
        self.uses.clear()

    def discard(self) -> None:
        """Let go of everything: uses know their recording, and only a collector would notice."""
        self.restart()
        self.uses.clear()

    def restart(self) -> None:
        """Forget the gradients of a backward pass that has to be repeated."""
        for parts in self._squares:
            parts.clear()
        self._entries.clear()
        self._together.clear()
        self._shared.clear()
        self.unverified = False

    def _measure(self, slot: Slot, contribution: Contribution) -> None:
        if not self._together.take(slot, contribution):
            self._squares[slot.group].append(contribution.squared_norms())
            self._entries.append((slot, contribution))

    def _summed_squares(self) -> tuple[Tensor, bool]:
        """Squared norms as [records, groups], and whether all are known to be finite."""
        measured = self._together.squared_norms()
        if measured is not None and not self._entries:
            return measured
        if measured is not None:
            squares = measured[0]
        else:
            some = self._some
            wide = torch.promote_types(some.dtype, torch.float32)
            sizes = (self.rows.records, len(self._squares))
            squares = torch.zeros(sizes, dtype=wide, device=some.device)
        for group, parts in enumerate(self._squares):
            if parts:
                squares[:, group].add_(torch.stack(parts).sum(0))
        return squares, math.isfinite(squares.sum().item())

    def _measure_shared(self, name: str, gradients: Gradients) -> None:
        by_slot: dict[Slot, list[Contribution]] = {}
        for slot, contribution in gradients:
            by_slot.setdefault(slot, []).append(contribution)
        spans = sorted(slot.span for slot in by_slot)
        apart = all(end <= start for (_, end), (start, _) in pairwise(spans))
        if apart:
            for slot, contributions in by_slot.items():
                self._measure(slot, combine(contributions))
            return
        whole = self.slots.whole(name)
        merged: Tensor | None = None
        for slot, contribution in gradients:
            part = contribution.per_record()
            if merged is None:
                merged = part.new_zeros(self.rows.records, *whole.size)
            for record, piece in zip(merged, part, strict=True):
                slot.within(record).add_(piece)
        assert merged is not None
        self._measure(whole, Dense(merged))
