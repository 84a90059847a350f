"""Uses of parameters read off autograd's graph, after a forward pass that nobody intercepted.

Interception costs Python at every call of a torch function, and again on the way back. Where the
graph consists of what readers know, it says as much: which inputs met which parameters, and where
their gradients will arrive. Autograd then goes back without a line of Python, and computes input
gradients alone, because nobody asks it for those of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, _engine_run_backward

from tacit.clipping.layers.axis import candidates
from tacit.clipping.layers.operation import Match, Operation, Placement
from tacit.clipping.layers.recording import Recording
from tacit.clipping.layers.slots import Met, Slots

_LEAF, _TRANSPOSITION = "torch::autograd::AccumulateGrad", "TBackward0"
_ENDS = {_LEAF, _TRANSPOSITION}


Reader = Callable[[Slots, Any, "Sequence[Met | None]"], "Match | None"]
"""Given a node and the parameters among its arguments, the input and operation behind it.

None where it is not what the reader knows; otherwise the operation has a slot for each parameter.
"""


class Read(NamedTuple):
    """One use of parameters: where its gradient arrives, what it meets, and where records lie."""

    node: Node
    x: Tensor
    operation: Operation
    at: Placement


def uses_read(
    losses: Tensor, recording: Recording, readers: Mapping[str, Reader]
) -> list[Read] | None:
    """All uses of trainable parameters behind the losses, the latest first.

    Guarantee: every way from the losses to a trainable parameter leads through one of them. None
    where that cannot be said: a use has no reader or has not shown before where its records lie, a
    parameter is used more than once, or the graph has a function of the user's own.
    """
    slots = recording.slots
    found: list[Read] = []
    used: set[str] = set()
    visited: set[Node] = set()
    waiting = [losses.grad_fn] if losses.grad_fn is not None else []
    if losses.requires_grad and not waiting:
        return None
    while waiting:
        node = waiting.pop()
        if node in visited:
            continue
        visited.add(node)
        if isinstance(node, BackwardCFunction):
            return None
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
                    return None
                else:
                    used.add(parameter.name)
            met.append(parameter)
        if not any(met):
            continue
        reader = readers.get(node.name())
        match = reader(slots, node, met) if reader is not None else None
        if match is None:
            return None
        x, operation = match
        axes = candidates(operation.leading(x), recording.rows)
        at = recording.placement(operation.slots[0], axes, x.dim())
        if at is None:
            return None
        found.append(Read(node, x, operation, at))
    found.sort(key=lambda read: -read.node._sequence_nr())
    return found


def read_backward(
    losses: Tensor, seeds: Tensor, found: Sequence[Read], recording: Recording
) -> None:
    """One backward pass as far as the uses found, each recorded when its gradient arrives.

    A node that leads on to others says so itself, after hooks on its output have had their way with
    the gradient; the first layers of a model, which nothing lies behind, are not run at all.
    """
    waiting = dict(enumerate(found))

    def arrived(place: int, outputs: tuple[Tensor | None, ...]) -> None:
        (g,) = outputs
        _, x, operation, at = waiting.pop(place)
        if g is not None:
            recording.add(operation.back(x.detach(), (), g, False, at)[1])

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


def _met(node: Any, name: str, slots: Slots) -> Met | None:
    transposed = name == _TRANSPOSITION
    if transposed:
        ((node, _),) = node.next_functions
        if node is None or node.name() != _LEAF:
            return None
    found = slots.name_of(node.variable)
    return None if found is None else Met(found, transposed)
