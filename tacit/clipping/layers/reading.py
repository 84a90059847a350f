"""Uses of parameters read off autograd's graph, after a forward pass that nobody intercepted.

Interception costs Python at every call of a torch function, and again on the way back. Where the
graph consists of what readers know, it says as much: which inputs met which parameters, and where
their gradients will arrive. Autograd then goes back by itself but for one call at each use, and
computes input gradients alone, because nobody asks it for those of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, _engine_run_backward

from tacit.clipping.layers.operation import Operation, ReadMatch
from tacit.clipping.layers.recording import Recording
from tacit.clipping.layers.slots import Met, Slots
from tacit.clipping.layers.watching import UnreadableError

_LEAF, _TRANSPOSITION = "torch::autograd::AccumulateGrad", "TBackward0"
_ENDS = {_LEAF, _TRANSPOSITION}


Reader = Callable[[Slots, Any, "Sequence[Met | None]"], "ReadMatch | None"]
"""Given a node and the parameters among its arguments, where it holds its input, and the operation.

None where it is not what the reader knows; otherwise the operation has a slot for each parameter.
"""


class Read(NamedTuple):
    """One use of parameters: where its gradient arrives, its input's name there, what it is."""

    node: Any
    given: str
    operation: Operation


def uses_read(losses: Tensor, slots: Slots, readers: Mapping[str, Reader]) -> list[Read]:
    """All uses of trainable parameters behind the losses, the latest first.

    Guarantee: every way from the losses to a trainable parameter leads through one of them. An
    `UnreadableError` where that cannot be said: a use has no reader, a parameter is used more than
    once, the graph has a function of the user's own, or inputs are kept elsewhere.
    """
    found: list[Read] = []
    used: set[str] = set()
    visited: set[Node] = set()
    waiting = [losses.grad_fn] if losses.grad_fn is not None else []
    if losses.requires_grad and not waiting:
        raise UnreadableError
    while waiting:
        node = waiting.pop()
        if node in visited:
            continue
        visited.add(node)
        if isinstance(node, BackwardCFunction):
            raise UnreadableError
        met: list[Met | None] = []
        for following, _ in node.next_functions:
            parameter = None
            if following is not None:
                name = following.name()
                if name in _ENDS:
                    parameter = _met(following, name, slots)
                if parameter is None:
                    waiting.append(following)
                elif parameter.name in used:
                    raise UnreadableError
                else:
                    used.add(parameter.name)
            met.append(parameter)
        if not any(met):
            continue
        reader = readers.get(node.name())
        match = reader(slots, node, met) if reader is not None else None
        if match is None or _packed(node, match[0]):
            raise UnreadableError
        found.append(Read(node, *match))
    found.sort(key=lambda read: -read.node._sequence_nr())
    return found


def read_backward(
    losses: Tensor, seeds: Tensor, found: Sequence[Read], recording: Recording
) -> None:
    """One backward pass as far as the uses found, each recorded when its gradient arrives.

    A node that leads on to others says so itself, after hooks on its output have had their way with
    the gradient; the first layers of a model, which nothing lies behind, are not run at all. An
    `UnreadableError` where a use has not shown before that its rows are those of the batch.
    """
    waiting = dict(enumerate(found))

    def arrived(place: int, outputs: tuple[Tensor | None, ...]) -> None:
        read = waiting.pop(place, None)
        if read is None or outputs[0] is None or not outputs[0].numel():
            return
        x = getattr(read.node, read.given).detach()
        at = recording.placement(read.operation, x)
        if at is None:
            raise UnreadableError
        recording.add(read.operation.back(x, (), outputs[0].resolve_neg(), False, at)[1])

    for place, read in enumerate(found):
        read.node.register_prehook(partial(arrived, place))
    edges = tuple(GradientEdge(read.node, 0) for read in found)
    try:
        gradients = _engine_run_backward(
            (losses,), (seeds,), False, False, edges, allow_unreachable=True, accumulate_grad=False
        )
        with torch.no_grad():
            for place in tuple(waiting):
                arrived(place, (gradients[place],))
    finally:
        waiting.clear()  # nodes hold their hooks: no circle may be left


def _packed(node: Any, given: str) -> bool:
    """Whether an input is not there as it was, as behind a checkpoint, which opens only once."""
    return getattr(getattr(node, f"_raw{given}"), "unpack_hook", None) is not None


def _met(node: Any, name: str, slots: Slots) -> Met | None:
    transposed = name == _TRANSPOSITION
    if transposed:
        ((node, _),) = node.next_functions
        if node is None or node.name() != _LEAF:
            return None
    found = slots.name_of(node.variable)
    return None if found is None else Met(found, transposed)
