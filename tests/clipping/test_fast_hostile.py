"""Records and models made to slip past the clipping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_fast_support import both_paths as both_paths
from test_fast_support import one_thread as one_thread
from torch import Tensor, nn

from tacit import native
from tacit.clipping.contract import Batch
from tacit.clipping.fast import FastEngine
from tacit.clipping.layers.choice import Algorithm, Chooser
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import Flat

CLIP = 1.0
HARDLY_MORE = 1.001


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def total(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch[0]).reshape(len(batch[0]), -1).sum(1)


def uneven(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch[0]) * batch[0]).flatten(1).sum(1)


def always(name: str) -> Callable[[Chooser, object, Sequence[Algorithm]], Algorithm]:
    def pick(
        self: Chooser, key: object, records: int, algorithms: Sequence[Algorithm]
    ) -> Algorithm:
        return next((a for a in algorithms if a.name == name), algorithms[-1])

    return pick


def almost_opposite(size: float, difference: float, *shape: int) -> tuple[Tensor, Tensor]:
    values = size * torch.randn(shape)
    return values, -values * (1 + difference)


class Tied(nn.Module):
    """What the table gives and what the linear layer takes from it pull in opposite directions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 16)

    def forward(self, x: Tensor) -> Tensor:
        looked_up = self.table(torch.zeros(x.shape[0], 1, dtype=torch.int64))
        return (x[:, :1] * looked_up).sum((1, 2)) + F.linear(x[:, 1], self.table.weight)[:, 0]


@pytest.mark.parametrize("size", [1e2, 1e4, 1e7])
@pytest.mark.parametrize("difference", [1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize(
    "way",
    [
        *("gram", "pixel products", "window products", "windows, twice", "tied"),
        *("kernels, pixel products", "kernels, measured"),
    ],
)
def test_parts_that_cancel_do_not_hide_a_large_gradient(
    monkeypatch: pytest.MonkeyPatch, way: str, size: float, difference: float
) -> None:
    if way.startswith("kernels") and not native.available():
        pytest.skip("the compiled kernels are not there")
    monkeypatch.setattr(Chooser, "pick", always(way))
    for _ in range(10):
        if way == "tied":
            model: nn.Module = Tied()
            x = torch.stack(almost_opposite(size, difference, 1, 16), 1)
        elif way == "gram":
            model = nn.Linear(48, 40, bias=False)
            x = torch.cat(almost_opposite(size, difference, 1, 1, 48), 1)
        else:
            model = nn.Conv2d(12, 40, 1, bias=False)
            x = torch.cat(almost_opposite(size, difference, 1, 12, 1, 1), 3)
        found = FastEngine(model, Flat(CLIP)).clipped_sum(total, [(x,)], 1)
        assert float(found.vector.norm()) <= HARDLY_MORE * CLIP


@pytest.mark.parametrize("width", [3, 64, 300])
def test_constant_parts_that_cancel_do_not_either(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Equal numbers add up with errors of one sign, the worst for a sum of products."""
    monkeypatch.setattr(Chooser, "pick", always("gram"))
    model = nn.Linear(width, 64, bias=False)
    engine = FastEngine(model, Flat(CLIP))
    for value in torch.rand(20).tolist():
        first = torch.full((1, 1, width), 1e5 * value)
        x = torch.cat((first, -first * (1 + 1e-4)), 1)
        batch = x, torch.full((1,), value)
        found = engine.clipped_sum(lambda m, b: b[1] * total(m, b), [batch], 1)
        assert float(found.vector.norm()) <= HARDLY_MORE * CLIP


@pytest.mark.parametrize("way", ["gram", "written out", "written out twice"])
def test_where_little_cancels_nothing_is_lost(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(Chooser, "pick", always(way))
    model = nn.Linear(64, 64, bias=False)
    x = torch.randn(8, 20, 64)
    found = FastEngine(model, Flat(CLIP)).clipped_sum(uneven, [(x,)], 1).vector
    expected = ReferenceEngine(model, Flat(CLIP)).clipped_sum(uneven, [(x,)], 1).vector
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


def with_and_without(model: nn.Module, x: Tensor, row: int) -> tuple[Tensor, Tensor]:
    """The clipped sum of all records, and of all but one."""
    engine = FastEngine(model, Flat(CLIP))
    others = torch.cat((x[:row], x[row + 1 :]))
    everyone, rest = (engine.clipped_sum(total, [(rows,)], 1).vector for rows in (x, others))
    return everyone, rest


@pytest.mark.parametrize("size", [1e6, 1e9, 1e15, 1e30])
@pytest.mark.parametrize("way", ["gram", "written out", "written out twice"])
def test_parts_that_cancel_do_not_drown_other_records(
    monkeypatch: pytest.MonkeyPatch, way: str, size: float
) -> None:
    monkeypatch.setattr(Chooser, "pick", always(way))
    x = torch.randn(20, 2, 16)
    x[5, 0] *= size
    x[5, 1] = -x[5, 0]
    everyone, others = with_and_without(nn.Linear(16, 16, bias=False), x, 5)
    assert float((everyone - others).norm()) <= 0.05 * CLIP < float(others.norm())


class WeightedTokens(nn.Module):
    """Every token with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x[:, :, 0].long()) * x[:, :, 1:]


@pytest.mark.parametrize("size", [1e6, 1e8, 1e12])
def test_tokens_that_cancel_do_not_drown_other_records(size: float) -> None:
    x = torch.stack((torch.zeros(20, 2), torch.randn(20, 2)), 2)
    x[15, :, 1] = torch.tensor([size, -size])
    everyone, others = with_and_without(WeightedTokens(), x, 15)
    assert float((everyone - others).norm()) <= 0.05 * CLIP < float(others.norm())


class OwnBias(nn.Module):
    """A linear layer whose bias is a row of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.weight[0])


class ScaleAsShift(nn.Module):
    """A normalisation that scales and shifts by the same parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (4,), self.both, self.both)


@pytest.mark.parametrize("kind", [OwnBias, ScaleAsShift])
def test_one_use_may_take_a_parameter_twice(kind: type[nn.Module]) -> None:
    model, x = kind(), 10 * torch.rand(6, 4)
    engine, oracle = FastEngine(model, Flat(CLIP)), ReferenceEngine(model, Flat(CLIP))
    for rows in (x[:1], x):
        found = engine.clipped_sum(uneven, [(rows,)], 1).vector
        torch.testing.assert_close(found, oracle.clipped_sum(uneven, [(rows,)], 1).vector)


class Halves(nn.Module):
    """Two views of one parameter, a transposed one, one used twice, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.randn(40))
        self.square = nn.Parameter(torch.randn(4, 4))
        self.twice = nn.Linear(4, 4)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.flat[:16].view(4, 4), self.flat[16:32].view(4, 4)
        x = self.twice(F.linear(x, first)).tanh() @ self.square
        return self.twice(F.linear(x, second, self.flat[36:]))


@pytest.mark.parametrize(
    "model",
    [
        Halves(),
        nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.Flatten(), nn.PReLU()),
        nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.Unflatten(1, (2, 2)), nn.Linear(2, 2)),
    ],
    ids=["views", "convolution", "positions"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_memory_that_was_never_written_is_never_read(
    monkeypatch: pytest.MonkeyPatch, model: nn.Module, dtype: torch.dtype
) -> None:
    model = model.to(dtype)
    x = torch.randn(7, 4, dtype=dtype)
    x[2] = torch.inf
    batches = [(x[:0],), (x[:2],), (x[2:3],), (x[3:],)]
    oracle = ReferenceEngine(model, Flat(CLIP), vectorised=False)
    unwritten = torch.empty

    def poisoned(*size: Any, **options: Any) -> Tensor:
        found = unwritten(*size, **options)
        return found.fill_(torch.nan) if found.is_floating_point() else found

    expected = [oracle.clipped_sum(total, part, 1).vector for part in (batches, batches[:1], [])]
    monkeypatch.setattr(torch, "empty", poisoned)
    engine = FastEngine(model, Flat(CLIP))
    for part, vector in zip((batches, batches[:1], []), expected, strict=True):
        for _ in range(2):
            found = engine.clipped_sum(total, part, 1).vector
            torch.testing.assert_close(found, vector, rtol=1e-4, atol=1e-5)


def test_norms_whose_sum_overflows_are_clipped_all_the_same() -> None:
    model = nn.Linear(2, 1, bias=False)
    x = torch.full((9, 2), 1e19)
    found = FastEngine(model, Flat(CLIP)).clipped_sum(total, [(x,)], 1).vector
    torch.testing.assert_close(found, torch.full((2,), 9 * 0.5**0.5), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("inputs", "scale"), [(1.5e19, 2e-23), (2e-23, 1e18), (1e15, 1e-22), (1e18, 1e-30)]
)
def test_rows_whose_squares_vanish_beside_huge_ones_are_clipped(
    inputs: float, scale: float
) -> None:
    model = nn.Linear(1, 64, bias=False)
    x = torch.tensor([[0.0], [inputs], [inputs]])

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch[0]) * scale).sum(1)

    clip = 0.1 * inputs * scale
    engine = FastEngine(model, Flat(clip))
    for _ in range(2):
        moved = float(engine.clipped_sum(loss, [(x,)], 1).vector.double().norm())
        assert 0 < moved <= 2 * clip * HARDLY_MORE


def test_a_layer_without_gradients_counts_records_as_any_other_does() -> None:
    """Zero times infinity is no number, be the gradient zero for one record or for all."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.fill_(-100.0)
    x = torch.randn(6, 3)
    x[1, 0] = -torch.inf
    found = FastEngine(model, Flat(CLIP)).clipped_sum(total, [(x,)], 1).vector
    expected = ReferenceEngine(model, Flat(CLIP)).clipped_sum(total, [(x,)], 1).vector
    torch.testing.assert_close(found, expected)
    assert float(found.norm()) == pytest.approx(5 * CLIP, rel=1e-4)
