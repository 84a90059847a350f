"""Recurrent layers, unrolled so that every step is a linear layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

State = tuple[Tensor, ...]
Step = Callable[[Tensor, Tensor, State], State]
"""(input part of the gates, hidden part of the gates, state) → next state, hidden first."""


def lstm_step(inputs: Tensor, hidden: Tensor, state: State) -> State:
    """One step of a long short-term memory."""
    entry, forget, cell, output = (inputs + hidden).chunk(4, -1)
    memory = forget.sigmoid() * state[1] + entry.sigmoid() * cell.tanh()
    return output.sigmoid() * memory.tanh(), memory


def gru_step(inputs: Tensor, hidden: Tensor, state: State) -> State:
    """One step of a gated recurrent unit."""
    reset_in, update_in, new_in = inputs.chunk(3, -1)
    reset_hidden, update_hidden, new_hidden = hidden.chunk(3, -1)
    update = (update_in + update_hidden).sigmoid()
    new = (new_in + (reset_in + reset_hidden).sigmoid() * new_hidden).tanh()
    return (new + update * (state[0] - new),)


def tanh_step(inputs: Tensor, hidden: Tensor, state: State) -> State:
    """One step of an Elman network."""
    return ((inputs + hidden).tanh(),)


def relu_step(inputs: Tensor, hidden: Tensor, state: State) -> State:
    """One step of an Elman network of rectified units."""
    return ((inputs + hidden).relu(),)


def _unrolled(
    step: Step,
    x: Tensor,
    initial: State,
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """What torch's fused kernels compute, as (output, final states…)."""
    if batch_first:
        x = x.transpose(0, 1)
    directions = 2 if bidirectional else 1
    per_cell = len(weights) // (layers * directions)
    finals: list[State] = []
    for layer in range(layers):
        if layer and dropout:
            x = F.dropout(x, dropout, training)
        outputs = []
        for direction in range(directions):
            cell = layer * directions + direction
            own = weights[cell * per_cell : (cell + 1) * per_cell]
            state = tuple(s[cell] for s in initial)
            hidden, state = _run_cell(step, x, state, own, has_biases, reverse=direction == 1)
            outputs.append(hidden)
            finals.append(state)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
    states = [torch.stack(column) for column in zip(*finals, strict=True)]
    return (x.transpose(0, 1) if batch_first else x, *states)


def _run_cell(
    step: Step,
    x: Tensor,
    state: State,
    weights: Sequence[Tensor],
    has_biases: bool,
    reverse: bool,
) -> tuple[Tensor, State]:
    from_input, from_hidden, *rest = weights
    input_bias, hidden_bias = rest[:2] if has_biases else (None, None)
    projection = rest[-1] if len(rest) % 2 else None
    gates = F.linear(x, from_input, input_bias).unbind(0)
    outputs = []
    for inputs in reversed(gates) if reverse else gates:
        state = step(inputs, F.linear(state[0], from_hidden, hidden_bias), state)
        if projection is not None:
            state = (F.linear(state[0], projection), *state[1:])
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if reverse else outputs), state


def sequence(step: Step) -> Callable[..., Any]:
    """A replacement for `torch.lstm`, `gru`, `rnn_tanh` or `rnn_relu` on padded batches."""

    def replacement(x: Tensor, *rest: Any) -> Any:
        initial, weights, *options = rest
        packed = isinstance(initial, Tensor) and not initial.is_floating_point()
        if packed or not any(weight.requires_grad for weight in weights):
            return NotImplemented
        return _unrolled(step, x, _as_state(initial), weights, *options)

    return replacement


def cell(step: Step) -> Callable[..., Any]:
    """A replacement for `torch.lstm_cell`, `gru_cell`, `rnn_tanh_cell` or `rnn_relu_cell`."""

    def replacement(
        x: Tensor,
        hx: Tensor | State,
        from_input: Tensor,
        from_hidden: Tensor,
        input_bias: Tensor | None = None,
        hidden_bias: Tensor | None = None,
    ) -> Tensor | State:
        state = _as_state(hx)
        hidden = F.linear(state[0], from_hidden, hidden_bias)
        state = step(F.linear(x, from_input, input_bias), hidden, state)
        return state[0] if len(state) == 1 else state

    return replacement


def _as_state(hx: Tensor | Sequence[Tensor]) -> State:
    return (hx,) if isinstance(hx, Tensor) else tuple(hx)
