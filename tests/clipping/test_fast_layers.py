"""Every layer and option of the fast engine against a loop of single-record gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from test_fast_support import assert_exact
from test_fast_support import both_paths as both_paths
from test_fast_support import one_thread as one_thread
from torch import Tensor, nn

small = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.function_scoped_fixture,
    ],
)
sizes = st.integers(1, 4)
booleans = st.booleans()
some_views = st.sampled_from([1, 3])
some_rule = st.integers(0, 3)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Wrapped(nn.Module):
    """A layer between two others, so that gradients flow into and out of it."""

    def __init__(self, layer: nn.Module, *, prepare: Callable[[Tensor], Any] | None = None) -> None:
        super().__init__()
        self.layer = layer
        self.scale = nn.Parameter(torch.tensor([1.5]))
        self.prepare = prepare

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        if x.is_floating_point():
            x = x + self.scale * x.cos()
        if self.prepare is not None:
            x = self.prepare(x)
        output = self.layer(x, *others)
        return output[0] if isinstance(output, tuple) else output


def check(layer: nn.Module, *inputs: Tensor, views: int, rule: int) -> None:
    assert_exact(Wrapped(layer), *inputs, views=views, rule=rule)


def rows(views: int) -> int:
    return 2 * views if views > 1 else 3


@small
@given(st.lists(sizes, max_size=2), sizes, sizes, booleans, some_views, some_rule)
def test_linear(
    leading: list[int], inputs: int, outputs: int, bias: bool, views: int, rule: int
) -> None:
    layer = nn.Linear(inputs, outputs, bias=bias)
    check(layer, torch.randn(rows(views), *leading, inputs), views=views, rule=rule)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("dims", [1, 2, 3])
@small
@given(st.data())
def test_convolution(dims: int, data: st.DataObject) -> None:
    views = data.draw(some_views)
    groups = data.draw(st.integers(1, 2))
    inputs, outputs = (groups * data.draw(st.integers(1, 2)) for _ in range(2))
    per_dim = st.tuples(*[st.integers(1, 3)] * dims)
    kernel, dilation = data.draw(per_dim), data.draw(st.tuples(*[st.integers(1, 2)] * dims))
    padding: Any = data.draw(st.one_of(st.tuples(*[st.integers(0, 2)] * dims), st.just("same")))
    stride = (1,) * dims if padding == "same" else data.draw(per_dim)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    space = [n + data.draw(st.integers(0, 2)) for n in reach]
    mode = data.draw(st.sampled_from(["zeros", "circular", "replicate"]))
    if mode == "circular":
        assume(padding == "same" or all(p <= n for p, n in zip(padding, space, strict=True)))
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    layer = kind(
        inputs,
        outputs,
        kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=data.draw(booleans),
        padding_mode=mode,
    )
    check(layer, torch.randn(rows(views), inputs, *space), views=views, rule=data.draw(some_rule))


@pytest.mark.parametrize("dims", [1, 2, 3])
@small
@given(st.data())
def test_transposed_convolution(dims: int, data: st.DataObject) -> None:
    views = data.draw(some_views)
    groups = data.draw(st.integers(1, 2))
    inputs, outputs = (groups * data.draw(st.integers(1, 2)) for _ in range(2))
    stride, dilation, padding = data.draw(sizes), data.draw(sizes), data.draw(st.integers(0, 1))
    extra = data.draw(st.integers(0, max(stride, dilation) - 1))
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
    layer = kind(
        inputs,
        outputs,
        data.draw(st.integers(2, 3)),
        stride=stride,
        padding=padding,
        output_padding=extra,
        groups=groups,
        bias=data.draw(booleans),
        dilation=dilation,
    )
    x = torch.randn(rows(views), inputs, *[data.draw(st.integers(2, 3))] * dims)
    check(layer, x, views=views, rule=data.draw(some_rule))


@small
@given(
    st.integers(2, 6),
    st.integers(1, 8),
    st.one_of(st.none(), st.integers(-2, 1)),
    some_views,
    some_rule,
)
def test_embedding(tokens: int, positions: int, padding: int | None, views: int, rule: int) -> None:
    layer = nn.Embedding(tokens, 3, padding_idx=padding)
    check(layer, torch.randint(0, tokens, (rows(views), positions)), views=views, rule=rule)


@pytest.mark.filterwarnings("ignore")
@small
@given(
    st.integers(2, 6),
    st.integers(1, 8),
    st.sampled_from(["mean", "sum", "max"]),
    st.one_of(st.none(), st.integers(0, 1)),
    some_views,
    some_rule,
)
def test_embedding_bag(
    tokens: int, positions: int, mode: str, padding: int | None, views: int, rule: int
) -> None:
    layer = nn.EmbeddingBag(tokens, 3, mode=mode, padding_idx=padding)
    check(layer, torch.randint(0, tokens, (rows(views), positions)), views=views, rule=rule)


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
@small
@given(
    st.lists(sizes, max_size=2),
    st.lists(st.integers(2, 4), min_size=1, max_size=2),
    some_views,
    some_rule,
)
def test_norms_of_positions(
    kind: type[nn.Module], leading: list[int], shape: list[int], views: int, rule: int
) -> None:
    check(kind(shape), torch.randn(rows(views), *leading, *shape), views=views, rule=rule)


@small
@given(st.integers(1, 2), st.integers(1, 2), st.lists(sizes, max_size=3), some_views, some_rule)
def test_group_norm(groups: int, each: int, space: list[int], views: int, rule: int) -> None:
    assume(each * torch.Size(space).numel() > 1)
    layer = nn.GroupNorm(groups, groups * each)
    check(layer, torch.randn(rows(views), groups * each, *space), views=views, rule=rule)


@pytest.mark.parametrize("kind", [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d])
@pytest.mark.parametrize("views", [1, 3])
def test_instance_norm(kind: type[nn.Module], views: int) -> None:
    dims = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d).index(kind) + 1
    check(kind(3, affine=True), torch.randn(rows(views), 3, *[3] * dims), views=views, rule=2)


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
    check(Attending(masked, **options), x, *others, views=views, rule=rule)


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

    check(Both(), torch.randn(3, 3, 4), views=1, rule=2)
    check(Both(), torch.randn(6, 2, 4), views=3, rule=0)


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
    check(Recurrent(layer), torch.randn(rows(views), length, 2), views=views, rule=rule)


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
    check(Stepping(kind(2, 3)), torch.randn(3, 2, 2), views=1, rule=2)


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
    check(Packed(), torch.randn(3, 4, 2), torch.tensor([2, 4, 3]), views=1, rule=2)


class BareParameters(nn.Module):
    """A class token, positions, a scale per channel, a matrix, and a learnt slope."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.positions = nn.Parameter(torch.randn(1, 4, 4))
        self.scale, self.matrix = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4, 3))
        self.shift, self.slope = nn.Parameter(torch.randn(4, 1)), nn.PReLU(4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.slope((self.scale * x - self.shift) @ self.matrix)


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("rule", range(4))
def test_bare_parameters(views: int, rule: int, recwarn: pytest.WarningsRecorder) -> None:
    check(BareParameters(), torch.randn(rows(views), 3, 4), views=views, rule=rule)
    assert not recwarn.list


class Flattening(nn.Module):
    """Positions folded into the batch, in either order."""

    def __init__(self, records_first: bool) -> None:
        super().__init__()
        self.inner, self.records_first = nn.Linear(4, 3), records_first

    def forward(self, x: Tensor) -> Tensor:
        if self.records_first:
            return self.inner(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        y = x.transpose(0, 1)
        return self.inner(y.flatten(0, 1)).unflatten(0, y.shape[:2]).transpose(0, 1)


@pytest.mark.parametrize("records_first", [True, False])
@pytest.mark.parametrize("positions", [2, 3, 6])
def test_positions_folded_into_the_batch(records_first: bool, positions: int) -> None:
    check(Flattening(records_first), torch.randn(3, positions, 4), views=1, rule=2)
    check(Flattening(records_first), torch.randn(6, positions, 4), views=3, rule=0)


class VideoFrames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Sequential(nn.Conv2d(2, 3, 2), nn.GroupNorm(1, 3), nn.PReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.frames(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def test_images_folded_into_the_batch() -> None:
    check(VideoFrames(), torch.randn(3, 2, 2, 4, 4), views=1, rule=2)


@pytest.mark.filterwarnings("ignore:Bilinear")
def test_bilinear_layers_fall_back() -> None:
    class Pairing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Bilinear(3, 3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, F.softplus(x))

    check(Pairing(), torch.randn(4, 3), views=1, rule=2)
    check(Pairing(), torch.randn(6, 3), views=3, rule=0)
