"""A batch is run again with all records but one replaced: that one's loss and gradient must stay.

Batches of one shape take the same algorithms, and a record keeps its place, so where records are
independent its loss and gradient are equal to the last bit, and any difference is influence of
other records. Where every record, or every mini-set, has a call of its own, the same comparison
finds what a model or loss remembers from one call to another.
What this detects and what it cannot: docs/proofs/independence.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from tacit.clipping.contract import (
    Batch,
    ClippingEngine,
    ClippingRule,
    LossFunction,
    check_losses,
)
from tacit.clipping.fast import DEFAULT_MEMORY_CEILING, FastEngine
from tacit.clipping.layers.world import World
from tacit.errors import MixedRecordsError, ModelError
from tacit.independence.replacements import (
    EXTREME,
    LARGE,
    MADE_UP,
    REPLACEMENTS,
    Replacement,
    Vocabulary,
)
from tacit.models.sanitization import SanitizationLayer
from tacit.structure import Structure
from tacit.weight_writes import weights_unwritten

WAYS_OUT = (
    "compute every record's loss from that record alone (pad to a fixed length, normalise within"
    " the record); or set engine='reference' or 'loop', which run every record by itself; or, if"
    " you know that records are independent, set assume_independent=True, which the certificate"
    " will say"
)
_NOT_REPEATABLE = (
    "whether records are independent cannot be checked: two passes over the same batch differ,"
    " though torch's generators were seeded alike; keep nothing of a pass for later ones (in an"
    " attribute, a cache or a global), and draw random numbers from torch's default generators"
    " only; or set assume_independent=True, which the certificate will say"
)
_REMEMBERED = (
    "model or loss keep something of one call for another (in an attribute, a cache or a global),"
    " so that no record's influence can be bounded; compute every {unit}'s loss from that {unit}"
    " alone, or, if you know that records are independent, set assume_independent=True, which the"
    " certificate will say"
)
_What = Literal["loss", "gradient"]
_Computation = Callable[[Batch, World], Tensor]
LAST = -1
_ROTATION = 7919
"""A prime that is larger than most batches: the record that stays is another one in every turn."""


@dataclass(frozen=True)
class Alone:
    """How records, or mini-sets, are computed in calls of their own.

    Args:
        unit: What has a call of its own, in a word.
        rows: Rows of a unit.
        engine: The clipping engine that computes units so.
        cut: Whether the engine takes every unit as a batch of its own.
    """

    unit: str
    rows: int
    engine: Callable[[ClippingRule], ClippingEngine]
    cut: bool = False


class Rerun:
    """Compares a record's loss and gradient in real company with those among public rows.

    The model's weights, buffers, mode and random states are left as they were. Nothing about the
    records is in the messages.

    Args:
        model: The network, whose records should be independent.
        views: Rows of a batch that belong to one record; they follow each other.
        memory_ceiling: Bytes of scratch memory for any one layer.
        alone: Where what is compared is a unit with a call of its own, instead of a record among
            others of its batch.
    """

    def __init__(
        self,
        model: nn.Module,
        views: int = 1,
        memory_ceiling: int = DEFAULT_MEMORY_CEILING,
        alone: Alone | None = None,
    ) -> None:
        self._model = model
        self._views = views
        self._rows = alone.rows if alone else views
        self._memory_ceiling = memory_ceiling
        self._alone = alone
        self._structure = Structure(model)
        self._rule = _OneRecord()
        self._engine: ClippingEngine | None = None

    def can_compare(self, batch: Batch) -> bool:
        """Whether the batch holds more than one record or unit."""
        return bool(batch) and len(batch[0]) > self._rows

    def compare(
        self,
        loss: LossFunction,
        batch: Batch,
        replacements: Sequence[Replacement],
        turn: int,
        *,
        evaluation: bool = False,
    ) -> None:
        """Raise MixedRecordsError where a record's loss or gradient changes with its company.

        Every kind of rows meets random numbers of its own. Made-up rows are shown first, so that
        what a model or loss keeps of the first batch it sees is public, and last again: nothing may
        have been kept of the rows in between.

        Args:
            loss: Returns one loss per row.
            batch: Real records, more than one.
            replacements: Kinds of public rows, tried one after the other.
            turn: Number of the check, which decides what record stays; `LAST` for the last one,
                which alone shows mixing with records before it.
            evaluation: Compare losses of the model in evaluation mode, and no gradients.
        """
        vocabulary = Vocabulary.of(self._model)
        record = self._kept_record(batch, turn, vocabulary)
        kept = slice(record * self._rows, (record + 1) * self._rows)
        made_up = MADE_UP.everywhere(batch, turn, vocabulary)
        computed: list[_What] = [] if self._alone else ["loss"]
        computed += [] if evaluation else ["gradient"]
        for what in computed:
            compute = self._computation(what, loss, kept, record)
            first = self._engine is None and what == "gradient"
            with self._undisturbed(evaluation=evaluation) as world:
                if first:
                    compute(made_up, world)  # algorithms are chosen in the first pass
                shown = compute(made_up, world)
            for number, kind in enumerate(replacements):
                others = kind.around(batch, kept, turn, vocabulary)
                seed = len(REPLACEMENTS) * abs(turn) + number + 1
                with self._undisturbed(seed=seed, evaluation=evaluation) as world:
                    real = compute(batch, world)
                    found = _attempted(compute, others, world, kind)
                    if found is None or _agree(found, real, kind.finite or what == "loss"):
                        continue
                    if self._alone:
                        raise MixedRecordsError(_REMEMBERED.format(unit=self._alone.unit))
                    if not _equal(compute(batch, world), real):
                        raise ModelError(_NOT_REPEATABLE)
                    seen = self._first_difference(loss, (batch, others), kept, world)
                    raise MixedRecordsError(
                        f"a record's {what} changes when the other records of its batch are"
                        f" replaced ({kind.name}), first seen in {seen}: no record's influence can"
                        f" be bounded; {WAYS_OUT}"
                    )
            with self._undisturbed(evaluation=evaluation) as world:
                if not _equal(compute(made_up, world), shown):
                    if self._alone:
                        raise MixedRecordsError(_REMEMBERED.format(unit=self._alone.unit))
                    raise ModelError(_NOT_REPEATABLE)

    def _computation(
        self, what: _What, loss: LossFunction, kept: slice, record: int
    ) -> _Computation:
        """Computes the kept record's loss, or its gradient."""
        if what == "loss":
            return lambda some, world: self._losses(loss, some, world)[kept].clone()
        return lambda some, world: self._gradient(loss, some, record, world)

    def compare_alone(self, loss: LossFunction, batch: Batch) -> None:
        """Raise MixedRecordsError where the first or last record's loss changes when all others
        leave.

        Up to rounding, because another shape may take other algorithms; dropout is off, and where
        that leaves random numbers, the whole model is in evaluation mode. A loss that draws random
        numbers even then cannot be compared so, and passes.
        """
        ends = slice(None, self._views), slice(-self._views, None)
        with self._undisturbed(dropout=False) as world:
            losses = self._losses(loss, batch, world)
            if world.random_numbers_drawn:
                self._model.eval()
                losses = self._losses(loss, batch, world)
            if world.random_numbers_drawn:
                return
            together = torch.cat([losses[end] for end in ends])
            try:
                each = [self._losses(loss, tuple(p[end] for p in batch), world) for end in ends]
                apart = torch.cat(each)
            except (RuntimeError, ValueError, IndexError) as error:
                raise ModelError(
                    f"the model or the loss fails with {type(error).__name__} on a batch of one"
                    " record, which sampling may draw; keep the first dimension for records (no"
                    " squeeze() without a dimension)"
                ) from error
        if not torch.allclose(together, apart, rtol=1e-3, atol=1e-4, equal_nan=True):
            raise MixedRecordsError(
                "a record's loss changes when other records join its batch, so that no record's"
                f" influence can be bounded; {WAYS_OUT}"
            )

    def compare_moved(self, loss: LossFunction, batch: Batch) -> None:
        """Raise MixedRecordsError where a unit's gradient changes with its place in the batch.

        What a model remembers of calls under vmap is kept place by place, so that a unit that
        stays where it is meets its own memory only; extreme rows are shown to the second place, and
        ordinary ones to the first. To be called before `compare`, which shows them to all. Up to
        rounding, and dropout is off; units that draw other random numbers cannot be compared so,
        and pass.
        """
        assert self._alone is not None
        moved = tuple(part.roll(self._rows, 0) for part in batch)
        vocabulary = Vocabulary.of(self._model)
        second = slice(self._rows, 2 * self._rows)
        made_up = MADE_UP.everywhere(batch, 0, vocabulary)
        extreme = tuple(part.clone() for part in made_up)
        for rows, others in zip(extreme, EXTREME.everywhere(batch, LARGE, vocabulary), strict=True):
            rows[second] = others[second]
        with self._undisturbed(dropout=False) as world:
            shown = self._gradient(loss, made_up, 0, world)
            if world.random_numbers_drawn:
                return
            self._gradient(loss, extreme, 0, world)
            again = self._gradient(loss, made_up, 0, world)
            before = self._gradient(loss, batch, 0, world)
            after = self._gradient(loss, moved, 1, world)
        if not (_equal(again, shown) and _agree(after, before, exactly=False)):
            raise MixedRecordsError(_REMEMBERED.format(unit=self._alone.unit))

    def _kept_record(self, batch: Batch, turn: int, vocabulary: Vocabulary) -> int:
        """In even turns the emptiest record, which trimming and pooling affect most."""
        count = len(batch[0]) // self._rows
        if turn == LAST:
            return count - 1
        if turn % 2:
            return (turn * _ROTATION) % count
        padding = 0 if batch[0].is_floating_point() else vocabulary.padding
        empty = (batch[0][: count * self._rows : self._rows].reshape(count, -1) == padding).sum(1)
        if int(empty.max()) > int(empty.min()):
            return int(empty.argmax())
        return (turn * _ROTATION + 1) % count

    def _gradient(self, loss: LossFunction, batch: Batch, record: int, world: World) -> Tensor:
        world.restore()
        self._rule.chosen, self._rule.passed = record, 0
        if self._engine is None and self._alone:
            self._engine = self._alone.engine(self._rule)
        if self._engine is None:
            self._engine = FastEngine(
                self._model, self._rule, deterministic=True, memory_ceiling=self._memory_ceiling
            )
        batches = [batch]
        if self._alone and self._alone.cut:
            batches = list(zip(*(part.split(self._rows) for part in batch), strict=True))
        return self._engine.clipped_sum(loss, batches, self._views).spend()

    def _losses(self, loss: LossFunction, batch: Batch, world: World) -> Tensor:
        world.restore()
        with torch.no_grad():
            return check_losses(loss(self._model, batch), len(batch[0]))

    @contextmanager
    def _undisturbed(
        self, *, dropout: bool = True, evaluation: bool = False, seed: int = 0
    ) -> Iterator[World]:
        """The model in training mode, or in evaluation mode, without noise on activations; restored
        at the end, its weights too, and refused if a pass has written to them."""
        modes = [(module, module.training) for module in self._model.modules()]
        self._structure = self._structure.current()
        trained = [p for p in self._model.parameters() if p.requires_grad]
        with weights_unwritten(trained), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            world = World(self._structure)
            self._model.train(not evaluation)
            for module in self._model.modules():
                if isinstance(module, SanitizationLayer) or (
                    not dropout and isinstance(module, nn.modules.dropout._DropoutNd)
                ):
                    module.eval()
            try:
                yield world
            finally:
                world.restore()
                for module, mode in modes:
                    module.training = mode

    def _first_difference(
        self, loss: LossFunction, batches: tuple[Batch, Batch], kept: slice, world: World
    ) -> str:
        """The innermost module whose output for the kept rows differs first, in words."""
        rows = len(batches[0][0])
        outputs: list[list[tuple[str, Tensor]]] = []
        for batch in batches:
            seen: list[tuple[str, Tensor]] = []
            handles = [
                module.register_forward_hook(_Collector(name, rows, kept, seen))
                for name, module in self._model.named_modules()
            ]
            try:
                self._losses(loss, batch, world)
            finally:
                for handle in handles:
                    handle.remove()
            outputs.append(seen)
        for (name, one), (_, other) in zip(*outputs, strict=False):
            if not _equal(one, other):
                kind = type(self._model.get_submodule(name)).__name__
                return f"the output of layer {name!r} ({kind})" if name else f"the model ({kind})"
        return "the loss function or a backward pass"


def _attempted(
    compute: _Computation, batch: Batch, world: World, kind: Replacement
) -> Tensor | None:
    """What is computed among public rows; None where a model refuses values that no record has."""
    try:
        return compute(batch, world)
    except ModelError:
        raise
    except (RuntimeError, ValueError, IndexError, ArithmeticError) as error:
        if not kind.finite:
            return None
        raise ModelError(
            "whether records are independent cannot be checked: the model or the loss fails with"
            f" {type(error).__name__} when the other records of a batch are replaced ({kind.name});"
            f" {WAYS_OUT}"
        ) from error


def _agree(found: Tensor, real: Tensor, exactly: bool) -> bool:
    """Equal to the last bit; if not `exactly`, up to rounding, as kernels take another order of
    summation where a batch holds non-finite values."""
    if exactly:
        return _equal(found, real)
    return torch.allclose(found, real, rtol=1e-5, atol=1e-5 * float(real.abs().max()))


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(
        ((one == other) | ((one != one) & (other != other))).all()
    )


class _OneRecord:
    """A rule under which the clipped sum is the gradient of one record."""

    bounds = (1.0,)
    shares = (1.0,)

    def __init__(self) -> None:
        self.chosen = self.passed = 0

    def grouping(self, names: Sequence[str]) -> Sequence[int]:
        return [0] * len(names)

    def factors(self, norms: Tensor) -> Tensor:
        """One for the chosen record; batches may come in parts."""
        factors = torch.zeros_like(norms)
        if 0 <= self.chosen - self.passed < len(norms):
            factors[self.chosen - self.passed] = 1.0
        self.passed += len(norms)
        return factors


class _Collector:
    """A forward hook that keeps some rows of a module's output."""

    def __init__(self, name: str, rows: int, kept: slice, seen: list[tuple[str, Tensor]]) -> None:
        self._name, self._rows, self._kept, self._seen = name, rows, kept, seen

    def __call__(self, module: nn.Module, inputs: object, output: object) -> None:
        first = output[0] if isinstance(output, tuple) and output else output
        if isinstance(first, Tensor) and first.shape[:1] == (self._rows,):
            self._seen.append((self._name, first[self._kept].detach().clone()))
