"""Compiled gradients against one image or record after the other in double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit import native
from tacit.clipping.fast import FastEngine
from tacit.clipping.layers.embedding import TableRows
from tacit.clipping.rules import Flat
from tacit.native import Library

LAST = torch.channels_last
IMAGES = 3


def close(found: Tensor, expected: Tensor) -> None:
    atol = 3e-6 * float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=3e-6, atol=atol)


def test_double_precision_is_left_to_torch(kernels: Library) -> None:
    rows = TableRows(torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3, 4).double(), 5)
    assert rows._kernels() is None
    assert TableRows(rows.tokens, rows.gradients.float(), 5)._kernels() is kernels


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("channels", "groups", "height", "width"), [(6, 2, 5, 7), (16, 4, 9, 9), (40, 1, 3, 2)]
)
def test_group_norm(
    kernels: Library, channels: int, groups: int, height: int, width: int, affine: bool
) -> None:
    torch.manual_seed(channels)
    x = (3 + torch.randn(IMAGES, channels, height, width)).contiguous(memory_format=LAST)
    g = torch.randn(x.shape)
    weight, bias = torch.randn(channels), torch.randn(channels)
    wide = x.double().requires_grad_()
    each = [
        p.double().expand(IMAGES, channels).clone().requires_grad_()
        for p in (weight if affine else torch.ones(channels), bias if affine else bias * 0)
    ]
    scale, shift = (p[:, :, None, None] for p in each)
    y = F.group_norm(wide, groups) * scale + shift
    expected = torch.autograd.grad(y, [wide, *each], g.double())
    given = (weight, bias) if affine else (None, None)
    found, mean, rstd = kernels.group_norm(x, groups, *given, 1e-5)
    close(found, y.detach())
    for one, other in zip(
        kernels.group_norm_backward(x, g, given[0], mean, rstd, True), expected, strict=True
    ):
        assert one is not None
        close(one, other)
    assert kernels.group_norm_backward(x, g, given[0], mean, rstd, False)[0] is None


def test_group_norm_keeps_a_small_spread_around_a_large_mean(kernels: Library) -> None:
    x = (100 + 0.01 * torch.randn(1, 8, 8, 8)).contiguous(memory_format=LAST)
    found = kernels.group_norm(x, 2, None, None, 1e-12)[0]
    torch.testing.assert_close(
        found.double(), F.group_norm(x.double(), 2, eps=1e-12), rtol=0, atol=3e-3
    )


@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("constant", [False, True])
def test_table_gradients(kernels: Library, padding: int, constant: bool) -> None:
    torch.manual_seed(padding + 9)
    records, positions, width, size = 7, 11, 5, 6
    tokens = torch.randint(0, size, (records, positions))
    g = torch.randn(records, 1 if constant else positions, width).expand(-1, positions, -1)
    factors = torch.linspace(0, 1, 2 * records)[::2]
    with native.limited_to(0):
        wide = TableRows(tokens, g.double(), size, padding)
        expected = wide.per_record()
    rows = TableRows(tokens, g, size, padding)
    close(rows.squared_norms(), expected.flatten(1).square().sum(1))
    total = torch.ones(size, width)
    rows.add_weighted(factors, total)
    close(total - 1, torch.tensordot(factors.double(), expected, 1))
    assert kernels is native.active()


class Both(nn.Module):
    """Every kind of layer that has kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 3, padding_idx=0)
        self.images = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU()),
            *(nn.Conv2d(8, 6, 3, 2), nn.GroupNorm(3, 6), nn.Flatten(), nn.Linear(96, 4)),
        )

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        means: Tensor = self.table(tokens).mean(1)
        out: Tensor = self.images(x * (1 + means[:, :, None, None]))
        return out


def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(model(*batch[:2]), batch[2], reduction="none")


@pytest.fixture
def batch() -> tuple[Tensor, ...]:
    torch.manual_seed(3)
    x = torch.randn(9, 3, 10, 10).contiguous(memory_format=LAST)
    return x, torch.randint(0, 20, (9, 12)), torch.randint(0, 4, (9,))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(4)
    return Both().to(memory_format=LAST)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("views", [1, 3])
def test_the_engine_gives_the_sum_of_the_portable_path(
    kernels: Library,
    model: nn.Module,
    batch: tuple[Tensor, ...],
    views: int,
    deterministic: bool,
) -> None:
    clip = 0.3
    engine = FastEngine(model, Flat(clip), deterministic=deterministic)
    found = [engine.clipped_sum(losses, [batch], views).vector for _ in range(2)]
    with native.limited_to(0):
        exact = FastEngine(model.double(), Flat(clip), deterministic=True)
        wide = (batch[0].double(), *batch[1:])
        expected = exact.clipped_sum(losses, [wide], views).vector
    assert float(expected.norm()) > clip
    for vector in found:
        torch.testing.assert_close(vector.double(), expected, rtol=0, atol=1e-5 * clip)
    assert kernels is native.active()


def test_the_number_of_threads_changes_no_bit(kernels: Library, batch: tuple[Tensor, ...]) -> None:
    before = torch.get_num_threads()
    x = torch.randn(IMAGES, 8, 5, 5).contiguous(memory_format=LAST)
    tokens, g = batch[1], torch.randn(9, 12, 4)
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            total = torch.zeros(20, 4)
            kernels.table_sum(tokens, g, -1, torch.rand(9, generator=fixed()), total)
            norms = kernels.table_norms(tokens, g, 20, -1)
            normed = kernels.group_norm(x, 2, None, None, 1e-5)
            results.append((total, norms, *normed))
    finally:
        torch.set_num_threads(before)
    for one, *others in zip(*results, strict=True):
        assert all(torch.equal(one, other) for other in others)


def fixed() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_records_with_infinite_gradients_count_for_nothing(
    kernels: Library, model: nn.Module, batch: tuple[Tensor, ...]
) -> None:
    broken = batch[0].clone(memory_format=torch.preserve_format)
    broken[2] = torch.inf
    without = torch.arange(9) != 2
    engine = FastEngine(model, Flat(0.3), deterministic=True)
    found = engine.clipped_sum(losses, [(broken, *batch[1:])], 1).vector
    rest = tuple(
        t[without].contiguous(memory_format=LAST) if t.dim() == 4 else t[without] for t in batch
    )
    expected = engine.clipped_sum(losses, [rest], 1).vector
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-6)
    assert kernels is native.active()
