"""Per-record gradients for a module that no rule covers: every record by itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tacit.clipping.layers.recording import Recording
from tacit.clipping.layers.slots import Slots
from tacit.clipping.layers.uses import Use
from tacit.clipping.layers.world import World, equal_up_to_rounding
from tacit.structure import Structure

_LAYOUT = "its inputs and outputs do not have one row after the other"
_MIXING = (
    "it computes something else for a batch than for records alone: it mixes records, so that no"
    " record's influence can be bounded"
)
_noticed: set[type[nn.Module]] = set()


class NotPerRecordError(Exception):
    """A module that cannot run record by record where it stands; what contains it may."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name)
        self.name = name
        self.reason = reason


class Unit:
    """A module that runs record by record, with its parameters' gradients written out.

    Guarantee: the gradient of every trainable parameter in the module, its children included,
    is recorded per record, whatever the module computes, as long as it does not mix records.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self._module = module
        self._mapped: dict[str, list[int]] = {}

    def notice(self) -> None:
        """Say once per type of module that it takes the slow way."""
        kind = type(self._module)
        if kind not in _noticed:
            _noticed.add(kind)
            warnings.warn(
                f"{kind.__name__} ({self.name or 'the whole model'!r}) uses parameters in a way"
                " that no fast rule covers: its gradients are computed per record, exact but"
                " slower, with memory for a copy of its parameters per record",
                stacklevel=2,
            )

    def bytes_per_record(self, slots: Slots) -> int:
        """Memory that the gradients of one record take."""
        names = set(slots.names_within(self._module).values())
        return sum(slots.parameters[n].numel() * slots.parameters[n].element_size() for n in names)

    def begin(self, recording: Recording) -> Callable[[], None]:
        """Let the module run record by record, until what is returned is called."""
        attributes = self._module.__dict__
        own = attributes.get("forward")
        original = self._module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            if recording.inside_unit or not torch.is_grad_enabled():
                return original(*args, **kwargs)
            recording.inside_unit = True
            try:
                return self._by_record(original, recording, args, kwargs)
            finally:
                recording.inside_unit = False

        def give_back() -> None:
            if own is None:
                attributes.pop("forward", None)
            else:
                attributes["forward"] = own

        attributes["forward"] = forward
        return give_back

    def _by_record(
        self,
        original: Callable[..., Any],
        recording: Recording,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        rows = recording.rows
        flat, structure = tree_flatten((args, kwargs))
        call = repr(structure)
        with_rows = [
            i
            for i, value in enumerate(flat)
            if isinstance(value, Tensor) and value.dim() and value.shape[0] == rows.count
        ]
        mapped = self._mapped.get(call, with_rows)
        if not mapped or not set(mapped) <= set(with_rows):
            raise NotPerRecordError(self.name, _LAYOUT)
        inputs = [flat[i].unflatten(0, (rows.records, rows.views)) for i in mapped]
        names = recording.slots.names_within(self._module)
        leaves = {f"module.{local}": recording.leaf(full) for local, full in names.items()}
        module = _Call(self._module, original)

        def one(parameters: dict[str, Tensor], values: list[Tensor]) -> Any:
            filled = list(flat)
            for i, value in zip(mapped, values, strict=True):
                filled[i] = value
            positional, named = tree_unflatten(filled, structure)
            return functional_call(module, parameters, positional, named)

        def apart() -> Any:
            outputs = _mapped(one, leaves, inputs, rows.records)
            if any(value.dim() < 2 for value in _tensors(outputs)):
                raise NotPerRecordError(self.name, _LAYOUT)
            return tree_map(lambda v: v.flatten(0, 1) if isinstance(v, Tensor) else v, outputs)

        def together() -> Any:
            return original(*args, **kwargs)

        try:
            outputs = apart()
        except NotPerRecordError:
            raise
        except Exception as error:
            with torch.no_grad():
                together()
            raise NotPerRecordError(self.name, f"it fails for one record alone: {error}") from error
        if call not in self._mapped:
            self._check(outputs, apart, together)
            self._mapped[call] = mapped
        use = recording.unit_use(self.name)
        return tree_map(lambda v: _watched(v, use), outputs)

    def _check(self, outputs: Any, apart: Callable[[], Any], together: Callable[[], Any]) -> None:
        """Refuse a module that computes something else for a batch than for records alone.

        Where it draws random numbers, both are compared as in evaluation, without dropout.
        """
        world = World(Structure(self._module))
        with torch.no_grad():
            joint = _tensors(together())
            random = world.random_numbers_drawn
            world.restore()
            alone = _tensors(outputs)
            if [t.shape for t in alone] != [t.shape for t in joint]:
                raise NotPerRecordError(self.name, _LAYOUT)
            if random:
                with _evaluating(self._module):
                    joint, alone = _tensors(together()), _tensors(apart())
                random = world.random_numbers_drawn
                world.restore()
        if not random and not all(map(equal_up_to_rounding, alone, joint)):
            raise NotPerRecordError(self.name, _MIXING)


class _Call(nn.Module):
    """The module's own forward as a module, so that `functional_call` runs no hook twice."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self._forward = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode for a while, every part put back as it was."""
    training = [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _mapped(
    one: Callable[[dict[str, Tensor], list[Tensor]], Any],
    leaves: dict[str, Tensor],
    inputs: list[Tensor],
    records: int,
) -> Any:
    """The outputs of all records, stacked: by torch.func, or one by one where that gives up."""
    try:
        return vmap(one, randomness="different")(leaves, inputs)
    except (RuntimeError, ValueError, TypeError):
        return _looped(one, leaves, inputs, records)


def _looped(
    one: Callable[[dict[str, Tensor], list[Tensor]], Any],
    leaves: dict[str, Tensor],
    inputs: list[Tensor],
    records: int,
) -> Any:
    apart = {name: leaf.unbind(0) for name, leaf in leaves.items()}
    outputs = [
        tree_flatten(one({n: parts[i] for n, parts in apart.items()}, [x[i] for x in inputs]))
        for i in range(records)
    ]
    columns = zip(*(values for values, _ in outputs), strict=True)
    joint = [
        torch.stack(column) if isinstance(column[0], Tensor) else column[0] for column in columns
    ]
    return tree_unflatten(joint, outputs[0][1])


def _tensors(outputs: Any) -> list[Tensor]:
    return [value for value in tree_flatten(outputs)[0] if isinstance(value, Tensor)]


def _watched(value: Any, use: Use) -> Any:
    """The value, with a look at the gradient that will come back to it."""
    if isinstance(value, Tensor) and value.requires_grad:
        value.register_hook(lambda g: use.look(g, g.dim() - 1))
    return value
