"""Norms of layers as large as real ones, by every way that measures them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit import native
from tacit.clipping.fast import FastEngine
from tacit.clipping.layers.choice import Algorithm, Chooser
from tacit.clipping.layers.conv_geometry import Geometry, Problem
from tacit.clipping.layers.embedding import TableRows
from tacit.clipping.layers.kernels import Kernels
from tacit.clipping.layers.outer_products import OuterProducts
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import Flat

CLOSE = 2e-6
"""Of a squared norm: what single precision loses in the gradient itself."""


class Tried(Chooser):
    """Runs every algorithm, and keeps what each found."""

    def __init__(self) -> None:
        super().__init__(deterministic=True, memory_ceiling=1 << 30)
        self.found: dict[str, Tensor] = {}

    def pick(self, key: object, records: int, algorithms: object) -> Algorithm:
        assert isinstance(algorithms, list)
        for algorithm in algorithms:
            if not algorithm.keeps:
                self.found[algorithm.name] = algorithm.run()
        chosen = super().pick(key, records, algorithms)
        assert isinstance(chosen, Algorithm)
        return chosen


def assert_all_near(found: dict[str, Tensor], expected: Tensor, ways: set[str]) -> None:
    assert ways <= set(found)
    for name, squares in found.items():
        worst = float((squares.double() / expected - 1).abs().max())
        assert worst < CLOSE, f"{name}: off by {worst:.1e}"


@pytest.mark.parametrize(
    ("channels", "outputs", "size"), [(64, 128, 8), (128, 96, 4), (48, 32, 14)]
)
def test_convolutions(channels: int, outputs: int, size: int) -> None:
    torch.manual_seed(channels)
    x = torch.relu(torch.randn(3, channels, size, size) + 0.3)
    g, geometry = torch.randn(3, outputs, size, size), Geometry((1, 1), (1, 1), (1, 1), 1)
    problem = Problem(x, g, (outputs, channels, 3, 3), geometry, 3)
    chooser = Tried()
    Kernels(problem, chooser).squared_norms()
    weight = torch.empty(problem.kernel, dtype=torch.float64)
    each = zip(x.double().split(1), g.double().split(1), strict=True)
    exact = torch.stack([geometry.backward(*one, weight, (False, True))[1] for one in each])
    expected = exact.flatten(1).square().sum(1)
    assert_all_near(chooser.found, expected, {"pixel products", "window products"})


def test_sequences() -> None:
    torch.manual_seed(0)
    inputs, outputs = torch.randn(3, 100, 64) + 0.5, torch.randn(3, 100, 80)
    chooser = Tried()
    OuterProducts(inputs, outputs, chooser).squared_norms()
    expected = torch.bmm(outputs.double().mT, inputs.double()).flatten(1).square().sum(1)
    assert_all_near(chooser.found, expected, {"gram", "written out twice"})


class TiedLanguageModel(nn.Module):
    """Tokens are looked up in the table that also scores them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.table(tokens)), self.table.weight)


def test_tied_tables() -> None:
    torch.manual_seed(0)
    model, tokens = TiedLanguageModel(), torch.randint(50, (4, 60))

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        scores = model(batch[0][:, :-1]).flatten(0, 1)
        each = F.cross_entropy(scores, batch[0][:, 1:].flatten(), reduction="none")
        return each.view(len(batch[0]), -1).sum(1)

    found = FastEngine(model, Flat(1.0)).clipped_sum(loss, [(tokens,)], 1).vector
    expected = ReferenceEngine(model, Flat(1.0)).clipped_sum(loss, [(tokens,)], 1).vector
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("levels", [0, 3])
@pytest.mark.parametrize(("positions", "width"), [(16, 64), (64, 512)])
def test_lookups_and_products_that_cancel(levels: int, positions: int, width: int) -> None:
    """Equal numbers add up with errors of one sign, the worst for a sum of squares."""
    chooser = Chooser(deterministic=True, memory_ceiling=1 << 29)
    tokens, once = torch.arange(positions).view(1, -1), -torch.eye(positions).unsqueeze(0)
    with native.limited_to(levels):
        for value in (0.1, 0.7, 1.3):
            g = torch.full((1, positions, width), value)
            rows, products = (
                TableRows(tokens, g, positions),
                OuterProducts(g * 0.999, once, chooser),
            )
            tied = rows.tied(products)
            assert tied is not None
            norm = float(tied.per_record().double().norm())
            found = float(tied.squared_norms().sqrt())
            assert found >= (1 - 1e-5) * norm


@pytest.mark.parametrize("positions", [1024, 4096])
@pytest.mark.parametrize("levels", [0, 3])
def test_many_parts_that_cancel_lose_little(levels: int, positions: int) -> None:
    """A token looked up again and again, with gradients that add up to nothing."""
    torch.manual_seed(0)
    tokens = torch.zeros(1, positions - positions % 3, dtype=torch.int64)
    g = torch.full((*tokens.shape, 4), 1.0)
    g[:, 2::3] = -2.0
    g *= 1000 * torch.rand(1)
    with native.limited_to(levels):
        rows = TableRows(tokens, g, 1)
        factors = 1 / rows.squared_norms().sqrt().clamp_min(1)
        moved = torch.zeros(1, 4)
        rows.add_weighted(factors, moved)
    assert float(moved.norm()) < 0.3
