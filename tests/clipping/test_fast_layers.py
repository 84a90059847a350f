"""Every layer and option of the fast engine against a loop of single-record gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from test_fast_support import (
    CLIP,
    batch_of,
    booleans,
    by_loop,
    error_within,
    rows,
    sizes,
    small,
    some_rule,
    some_views,
    squared_loss,
)
from test_fast_support import both_paths as both_paths
from test_fast_support import one_thread as one_thread
from test_fast_support import seeded as seeded
from torch import Tensor, nn

from tacit.clipping.contract import Batch
from tacit.clipping.fast import FastEngine
from tacit.clipping.rules import Flat


@small
@given(st.lists(sizes, max_size=2), sizes, sizes, booleans, some_views, some_rule)
def test_linear(
    leading: list[int], inputs: int, outputs: int, bias: bool, views: int, rule: int
) -> None:
    layer = nn.Linear(inputs, outputs, bias=bias)
    assert (
        error_within(layer, torch.randn(rows(views), *leading, inputs), views=views, rule=rule) <= 1
    )


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
    assert (
        error_within(
            layer, torch.randn(rows(views), inputs, *space), views=views, rule=data.draw(some_rule)
        )
        <= 1
    )


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
    assert error_within(layer, x, views=views, rule=data.draw(some_rule)) <= 1


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
    assert (
        error_within(
            layer, torch.randint(0, tokens, (rows(views), positions)), views=views, rule=rule
        )
        <= 1
    )


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
    assert (
        error_within(
            layer, torch.randint(0, tokens, (rows(views), positions)), views=views, rule=rule
        )
        <= 1
    )


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
    assert (
        error_within(
            kind(shape), torch.randn(rows(views), *leading, *shape), views=views, rule=rule
        )
        <= 1
    )


@small
@given(st.integers(1, 2), st.integers(1, 2), st.lists(sizes, max_size=3), some_views, some_rule)
def test_group_norm(groups: int, each: int, space: list[int], views: int, rule: int) -> None:
    assume(each * torch.Size(space).numel() > 1)
    layer = nn.GroupNorm(groups, groups * each)
    assert (
        error_within(layer, torch.randn(rows(views), groups * each, *space), views=views, rule=rule)
        <= 1
    )


@pytest.mark.parametrize("kind", [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d])
@pytest.mark.parametrize("views", [1, 3])
def test_instance_norm(kind: type[nn.Module], views: int) -> None:
    dims = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d).index(kind) + 1
    assert (
        error_within(
            kind(3, affine=True), torch.randn(rows(views), 3, *[3] * dims), views=views, rule=2
        )
        <= 1
    )


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
    assert (
        error_within(BareParameters(), torch.randn(rows(views), 3, 4), views=views, rule=rule) <= 1
    )
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
    assert (
        error_within(Flattening(records_first), torch.randn(3, positions, 4), views=1, rule=2) <= 1
    )
    assert (
        error_within(Flattening(records_first), torch.randn(6, positions, 4), views=3, rule=0) <= 1
    )


class VideoFrames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Sequential(nn.Conv2d(2, 3, 2), nn.GroupNorm(1, 3), nn.PReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.frames(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def test_images_folded_into_the_batch() -> None:
    assert error_within(VideoFrames(), torch.randn(3, 2, 2, 4, 4), views=1, rule=2) <= 1


class Pairing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Bilinear(3, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, F.softplus(x))


@pytest.mark.filterwarnings("ignore:Bilinear")
def test_bilinear_layers_fall_back() -> None:
    assert error_within(Pairing(), torch.randn(4, 3), views=1, rule=2) <= 1
    assert error_within(Pairing(), torch.randn(6, 3), views=3, rule=0) <= 1


@pytest.mark.filterwarnings("ignore:Bilinear")
@pytest.mark.parametrize("views", [1, 2])
def test_gradients_that_are_written_out_keep_to_the_memory_ceiling(views: int) -> None:
    """The pairing takes 20 numbers for a record, so that three records fit."""
    model = nn.Sequential(Pairing(), nn.Linear(2, 2)).double()
    batch = batch_of(torch.randn(7 * views, 3).double())
    seen = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        seen.append(len(batch[0]))
        return squared_loss(model, batch)

    engine = FastEngine(model, Flat(CLIP), memory_ceiling=3 * 20 * 8)
    engine.clipped_sum(loss, [batch], views)
    seen.clear()
    found = engine.clipped_sum(loss, [batch], views).vector
    assert seen == [3 * views, 3 * views, views]
    torch.testing.assert_close(found, by_loop(model, Flat(CLIP), batch, views))
