"""Attention and recurrent layers of the fast engine against a loop of single-record gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_fast_support import (
    booleans,
    error_within,
    largest_error,
    rows,
    small,
    some_rule,
    some_views,
)
from test_fast_support import both_paths as both_paths
from test_fast_support import one_thread as one_thread
from test_fast_support import seeded as seeded
from torch import Tensor, nn

from tacit.models import build


class Attending(nn.Module):
    """Attention over a sequence in either layout, to itself or to a second one."""

    def __init__(self, masked: bool, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, **options)
        self.masked = masked

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        first = self.attention.batch_first
        query = x if first else x.transpose(0, 1)
        memory = query if other is None else other if first else other.transpose(0, 1)
        hidden = torch.arange(memory.shape[1 if first else 0]) == 1
        ignored = hidden.expand(x.shape[0], -1) if self.masked else None
        output = self.attention(query, memory, memory, key_padding_mask=ignored)[0]
        return output if first else output.transpose(0, 1)


@pytest.mark.filterwarnings("ignore:Attending", "ignore:MultiheadAttention")
@small
@given(booleans, booleans, booleans, booleans, booleans, some_views, some_rule)
def test_attention(
    batch_first: bool, bias: bool, masked: bool, extra: bool, across: bool, views: int, rule: int
) -> None:
    options: dict[str, Any] = {"batch_first": batch_first, "bias": bias}
    if extra:
        options |= {"add_bias_kv": True}
    if across:
        options |= {"kdim": 3, "vdim": 3}
    others = [torch.randn(rows(views), 3, 3)] if across else []
    x = torch.randn(rows(views), rows(views), 4)
    assert error_within(Attending(masked, **options), x, *others, views=views, rule=rule) <= 1


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_layers(batch_first: bool, norm_first: bool) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            options: dict[str, Any] = {"batch_first": batch_first, "norm_first": norm_first}
            self.encoder = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, **options)
            self.decoder = nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0, **options)

        def forward(self, x: Tensor) -> Tensor:
            x = x if batch_first else x.transpose(0, 1)
            memory = self.encoder(x)
            output: Tensor = self.decoder(x.cos(), memory)
            return output if batch_first else output.transpose(0, 1)

    assert error_within(Both(), torch.randn(3, 3, 4), views=1, rule=2) <= 1
    assert error_within(Both(), torch.randn(6, 2, 4), views=3, rule=0) <= 1


class Recurrent(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        first = self.layer.batch_first
        output, state = self.layer(x if first else x.transpose(0, 1))
        hidden = state[0] if isinstance(state, tuple) else state
        output = output if first else output.transpose(0, 1)
        return torch.cat([output.flatten(1), hidden.transpose(0, 1).flatten(1)], 1)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "projected"])
@small
@given(st.data())
def test_recurrent_layers(kind: str, data: st.DataObject) -> None:
    layers, length = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    bias, both, batch_first = data.draw(booleans), data.draw(booleans), data.draw(booleans)
    views, rule = data.draw(some_views), data.draw(some_rule)
    options: dict[str, Any] = {
        "num_layers": layers,
        "bias": bias,
        "bidirectional": both,
        "batch_first": batch_first,
    }
    if kind == "RNN":
        options["nonlinearity"] = "relu" if both else "tanh"
    layer = (
        nn.LSTM(2, 3, proj_size=2, **options)
        if kind == "projected"
        else getattr(nn, kind)(2, 3, **options)
    )
    assert (
        error_within(Recurrent(layer), torch.randn(rows(views), length, 2), views=views, rule=rule)
        <= 1
    )


class Stepping(nn.Module):
    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[0] if isinstance(state, tuple) else state


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_recurrent_cells(kind: type[nn.RNNCellBase]) -> None:
    assert error_within(Stepping(kind(2, 3)), torch.randn(3, 2, 2), views=1, rule=2) <= 1


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(2, 3, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        return self.layer(packed)[1][0].squeeze(0)


@pytest.mark.filterwarnings("ignore")
def test_packed_sequences() -> None:
    assert (
        error_within(Packed(), torch.randn(3, 4, 2), torch.tensor([2, 4, 3]), views=1, rule=2) <= 1
    )


@pytest.mark.parametrize("name", ["text-mean", "text-tempered", "text-linear", "text-lstm"])
def test_networks_for_texts(name: str) -> None:
    ids = torch.randint(0, 20, (6, 9))
    ids[0, 2:] = 0
    assert largest_error(build(name, (9,), 2, tokens=20), ids) <= 1
