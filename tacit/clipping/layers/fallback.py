"""Per-record gradients for a module that no rule covers: every record by itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tacit.clipping.layers.recording import Recording, Use
from tacit.errors import ModelError

_noticed: set[type[nn.Module]] = set()


class NotPerRecordError(Exception):
    """A module whose inputs or outputs are not laid out one row after the other."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Unit:
    """A module that runs record by record, with its parameters' gradients written out.

    Guarantee: the gradient of every trainable parameter in the module, its children included,
    is recorded per record, whatever the module computes, as long as it does not mix records.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self._module = module
        self._checked = False

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

    @contextmanager
    def replaced(self, recording: Recording) -> Iterator[None]:
        """Let the module run record by record for as long as the context is open."""
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

        attributes["forward"] = forward
        try:
            yield
        finally:
            if own is None:
                del attributes["forward"]
            else:
                attributes["forward"] = own

    def _by_record(
        self,
        original: Callable[..., Any],
        recording: Recording,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        rows = recording.rows
        flat, structure = tree_flatten((args, kwargs))
        mapped = [
            i
            for i, value in enumerate(flat)
            if isinstance(value, Tensor) and value.dim() and value.shape[0] == rows.count
        ]
        if not mapped:
            raise NotPerRecordError(self.name)
        inputs = [flat[i].unflatten(0, (rows.records, rows.views)) for i in mapped]
        names = recording.slots.names_within(self._module)
        leaves = {f"module.{local}": recording.leaf(full) for local, full in names.items()}
        call = _Call(self._module, original)

        def one(parameters: dict[str, Tensor], values: list[Tensor]) -> Any:
            filled = list(flat)
            for i, value in zip(mapped, values, strict=True):
                filled[i] = value
            positional, named = tree_unflatten(filled, structure)
            return functional_call(call, parameters, positional, named)

        try:
            outputs = vmap(one, randomness="different")(leaves, inputs)
        except (RuntimeError, ValueError):
            outputs = _looped(one, leaves, inputs, rows.records)
        outputs = tree_map(lambda v: v.flatten(0, 1) if isinstance(v, Tensor) else v, outputs)
        if not self._checked:
            self._check(outputs, original, args, kwargs)
        use = recording.unit_use(self.name)
        return tree_map(lambda v: _bordered(v, use), outputs)

    def _check(
        self,
        outputs: Any,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Refuse a module that computes something else for a batch than for records alone."""
        with torch.no_grad(), torch.random.fork_rng():
            before = torch.get_rng_state()
            together = _tensors(original(*args, **kwargs))
            random = not torch.equal(before, torch.get_rng_state())
        alone = _tensors(outputs)
        if [t.shape for t in alone] != [t.shape for t in together]:
            raise NotPerRecordError(self.name)
        same = (
            torch.allclose(a, b, rtol=1e-2, atol=1e-3 * float(b.abs().max()), equal_nan=True)
            for a, b in zip(alone, together, strict=True)
            if b.is_floating_point() and b.numel()
        )
        if not random and not all(same):
            raise ModelError(
                f"{type(self._module).__name__} ({self.name or 'the whole model'!r}) computes"
                " something else for a batch than for its records one by one: it mixes records,"
                " so that no record's influence can be bounded; remove what mixes them"
            )
        self._checked = True


class _Call(nn.Module):
    """The module's own forward as a module, so that `functional_call` runs no hook twice."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self._forward = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)


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


def _bordered(value: Any, use: Use) -> Any:
    if isinstance(value, Tensor) and value.requires_grad:
        return _Border.apply(value, use)  # type: ignore[no-untyped-call]
    return value


class _Border(Function):
    """Nothing, except that a probe sees the gradient that comes back into a unit."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, use: Use) -> Tensor:
        ctx.use = use
        return value.view_as(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        ctx.use.placement(g, g.dim() - 1)
        return g, None
