"""The fast engine on whole models: exact, whatever happens to a record or a batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_fast_support import (
    CLIP,
    PerParameter,
    batch_of,
    by_loop,
    fast,
    largest_error,
    rules_for,
    squared_loss,
)
from test_fast_support import both_paths as both_paths
from test_fast_support import one_thread as one_thread
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tacit.clipping.contract import Batch
from tacit.clipping.fast import FastEngine
from tacit.clipping.layers.contributions import Dense
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import Flat


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.Conv2d(4, 4, (2, 3), groups=2, dilation=2, padding="same"),
        nn.Flatten(),
        nn.Linear(100, 2),
    )


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("views", [1, 3])
def test_whole_models(views: int) -> None:
    assert largest_error(perceptron(), torch.randn(6, 4), views=views) <= 1
    assert largest_error(convnet(), torch.randn(6, 3, 9, 9), views=views) <= 1


def test_agrees_with_the_reference_engine() -> None:
    model = convnet().double()
    batch = batch_of(torch.randn(6, 3, 9, 9).double())
    kinds = (ReferenceEngine, FastEngine)
    sums = [kind(model, Flat(CLIP)).clipped_sum(squared_loss, [batch], 1) for kind in kinds]
    torch.testing.assert_close(sums[0].vector, sums[1].vector, rtol=0, atol=1e-12 * CLIP)
    assert sums[0].layout == sums[1].layout
    assert sums[0].bounds == sums[1].bounds


class Branches(nn.Module):
    """Two layers whose outputs have one gradient, and the bias of a third alone."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.last = nn.Linear(3, 5), nn.Linear(4, 5), nn.Linear(5, 2)
        self.last.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.one(x[:, :3]) + self.other(x[:, 3:])))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("made", "shape"), [(perceptron, [4]), (convnet, [3, 9, 9]), (Branches, [7])]
)
def test_micro_batches_add_up(
    made: Callable[[], nn.Module], shape: list[int], dtype: torch.dtype
) -> None:
    model = made().to(dtype)
    batch = batch_of(torch.randn(7, *shape, dtype=dtype))
    parts = [tuple(t[:4] for t in batch), tuple(t[4:] for t in batch), tuple(t[:0] for t in batch)]
    for rule in rules_for(model):
        found = FastEngine(model, rule).clipped_sum(squared_loss, parts, 1).vector
        torch.testing.assert_close(found, by_loop(model, rule, batch))


def test_no_batch_and_an_empty_batch_give_zero() -> None:
    model = perceptron()
    engine = FastEngine(model, Flat(CLIP))
    for batches in ([], [(torch.empty(0, 4), torch.empty(0))]):
        assert not engine.clipped_sum(squared_loss, batches, 1).vector.any()


def test_batches_of_one() -> None:
    assert largest_error(perceptron(), torch.randn(1, 4)) <= 1
    assert largest_error(convnet(), torch.randn(1, 3, 9, 9)) <= 1
    assert largest_error(convnet(), torch.randn(2, 3, 9, 9), views=2) <= 1


def weighted_loss(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch[0]).flatten(1).sin().sum(1) * batch[1]


@pytest.mark.parametrize("build", [perceptron, convnet])
def test_a_record_without_gradient(build: type[nn.Module]) -> None:
    model = build().double()
    x = torch.randn(4, *((4,) if build is perceptron else (3, 9, 9))).double()
    batch = (x, torch.tensor([1.0, 0.0, 2.0, 3.0]).double())
    for rule in rules_for(model):
        expected = by_loop(model, rule, batch, loss=weighted_loss)
        torch.testing.assert_close(fast(model, rule, batch, loss=weighted_loss), expected)


@pytest.mark.parametrize("poison", [float("inf"), float("nan"), 1e200])
@pytest.mark.parametrize("build", [perceptron, convnet])
def test_a_record_that_is_not_finite_counts_as_absent(
    build: type[nn.Module], poison: float
) -> None:
    model = build().double()
    x = torch.randn(4, *((4,) if build is perceptron else (3, 9, 9))).double()
    weights = torch.tensor([1.0, poison, 2.0, 3.0]).double()
    for rule in rules_for(model):
        others = (x[[0, 2, 3]], weights[[0, 2, 3]])
        expected = by_loop(model, rule, others, loss=weighted_loss)
        for deterministic in (False, True):
            found = fast(model, rule, (x, weights), loss=weighted_loss, deterministic=deterministic)
            torch.testing.assert_close(found, expected)


def test_an_infinite_input_does_not_reach_others() -> None:
    model = perceptron().double()
    x = torch.randn(4, 4).double()
    x[2, 1] = float("inf")
    keep = [0, 1, 3]
    batch = batch_of(x)
    expected = by_loop(model, Flat(CLIP), tuple(t[keep] for t in batch))
    torch.testing.assert_close(fast(model, Flat(CLIP), batch), expected)


def test_frozen_parameters() -> None:
    for frozen in (["0.weight"], ["0.bias"], ["0.weight", "0.bias"], ["3.weight", "1.bias"]):
        model = convnet()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name not in frozen)
        assert largest_error(model, torch.randn(4, 3, 9, 9)) <= 1


def test_dropout_follows_the_seed() -> None:
    model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 2)).double()
    batch = batch_of(torch.randn(5, 4).double())
    engine = FastEngine(model, Flat(CLIP))
    sums = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        sums.append(engine.clipped_sum(squared_loss, [batch], 1).vector)
    assert torch.equal(sums[0], sums[1])
    assert not torch.equal(sums[0], sums[2])
    torch.manual_seed(1)
    masked = model[1](torch.ones(5, 50).double())

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        outputs = model[2](model[0](batch[0]) * batch[1]).flatten(1)
        slopes = torch.linspace(1, 2, outputs.shape[1], dtype=outputs.dtype)
        return ((outputs * slopes).sin().sum(1) - batch[2]).square()

    expected = by_loop(model, Flat(CLIP), (batch[0], masked, batch[1]), loss=loss)
    torch.testing.assert_close(sums[0], expected)


def test_deterministic_engines_agree_bit_for_bit() -> None:
    model, batch = convnet(), batch_of(torch.randn(6, 3, 9, 9), dtype=torch.float32)
    one, other = (fast(model, Flat(CLIP), batch, deterministic=True) for _ in range(2))
    assert torch.equal(one, other)


def test_a_low_memory_ceiling_changes_nothing_but_the_path() -> None:
    model = convnet().double()
    batch = batch_of(torch.randn(6, 3, 9, 9).double())
    engine = FastEngine(model, Flat(CLIP), memory_ceiling=1)
    found = engine.clipped_sum(squared_loss, [batch], 1).vector
    torch.testing.assert_close(found, by_loop(model, Flat(CLIP), batch))


def test_batch_sizes_may_change_from_step_to_step() -> None:
    model = convnet().double()
    engine = FastEngine(model, Flat(CLIP))
    for records in (1, 3, 2, 5):
        batch = batch_of(torch.randn(records, 3, 9, 9).double())
        found = engine.clipped_sum(squared_loss, [batch], 1).vector
        torch.testing.assert_close(found, by_loop(model, Flat(CLIP), batch))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = perceptron()
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.inner, x, use_reentrant=False))


def test_activation_checkpointing() -> None:
    assert largest_error(Checkpointed(), torch.randn(4, 4)) <= 1
    assert largest_error(Checkpointed(), torch.randn(4, 4).requires_grad_()) <= 1


def test_a_dropped_norm_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one layer's norm went missing, sums would leave their bound: this very suite fails."""
    model = perceptron().double()
    batch = batch_of(torch.randn(6, 4).double())
    expected = by_loop(model, Flat(CLIP), batch)
    torch.testing.assert_close(fast(model, Flat(CLIP), batch), expected)
    zero = lambda dense: dense.per_record().new_zeros(len(dense.per_record()))  # noqa: E731
    monkeypatch.setattr(Dense, "squared_norms", zero)
    assert (fast(model, Flat(CLIP), batch) - expected).abs().max() > 1e-3 * CLIP


def test_no_record_exceeds_its_bound() -> None:
    model = convnet().double()
    rule = PerParameter(8)
    for record in torch.randn(8, 1, 3, 9, 9).double():
        found = FastEngine(model, rule).clipped_sum(squared_loss, [batch_of(record)], 1)
        for part, bound in zip(found.layout.views(found.vector).values(), rule.bounds, strict=True):
            assert part.norm() <= bound * (1 + 1e-12)
