"""Compiled gradients against one image or record after the other in double precision."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit import native
from tacit.clipping.fast import FastEngine
from tacit.clipping.layers.embedding import TableRows
from tacit.clipping.rules import Flat
from tacit.native import Library, Product, Products

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


@pytest.mark.parametrize("seed", range(24))
def test_several_layers_of_outer_products_at_once(kernels: Library, seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    records, groups = chance.choice([0, 1, 7, 70, 513, 1100]), chance.choice([1, 3])
    factors = torch.rand(records, groups)
    squares = torch.zeros(records, groups, dtype=torch.float64)
    products, sums = [], []
    for place in range(4):
        inputs, outputs = (chance.choice([1, 2, 7, 16, 33, 70, 150]) for _ in range(2))
        outputs += 800 * (seed % 6 == place)
        x, g = torch.randn(records, inputs + 3)[:, 2:-1], torch.randn(records, outputs + 1)[:, 1:]
        group, weighted, shifted = chance.randrange(groups), place != 2, place != 1
        product = Product(g, group)
        norms = torch.zeros(records, dtype=torch.float64)
        scaled = (g * factors[:, group, None]).double()
        if weighted:
            product.x, product.kept = x, bool(place % 2)
            product.total = torch.randn(outputs, inputs)
            before = product.total.clone() if product.kept else 0
            sums.append((product.total, before + scaled.t() @ x.double()))
            norms += x.double().square().sum(1)
        if shifted:
            product.shift, product.shift_kept = torch.randn(outputs), bool(place // 2)
            before = product.shift.clone() if product.shift_kept else 0
            sums.append((product.shift, before + scaled.sum(0)))
            norms += 1
        squares[:, group] += norms * g.double().square().sum(1)
        products.append(product)
    described = Products(products, records, groups)
    found_squares = kernels.outer_squares(described).double()
    torch.testing.assert_close(found_squares, squares, rtol=1e-5, atol=0)
    kernels.outer_sums(described, factors)
    for found, expected in sums:
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


def test_outer_products_have_the_same_bits_with_any_number_of_threads(kernels: Library) -> None:
    torch.manual_seed(1)
    x, g, factors = torch.randn(70, 33), torch.randn(70, 901), torch.rand(70, 1)

    def found() -> list[Tensor]:
        total, shift = torch.full((901, 33), torch.nan), torch.full((901,), torch.nan)
        products = Products([Product(g, 0, x, total, False, shift)], 70, 1)
        squares = kernels.outer_squares(products)
        kernels.outer_sums(products, factors)
        return [squares, total, shift]

    together, threads = found(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = found()
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, alone, together))


def test_outer_products_that_kernels_cannot_read_are_refused() -> None:
    rows, total = torch.zeros(3, 4), torch.zeros(4, 4)
    for product in (
        Product(rows.double(), 0, shift=total[0]),
        Product(torch.zeros(4, 3).t(), 0, shift=total[0]),
        Product(rows[:2], 0, shift=total[0]),
        Product(rows, 1, shift=total[0]),
        Product(rows, 0, shift=total[:, 0]),
        Product(rows, 0, rows, total[:3]),
        Product(rows, 0, rows),
    ):
        with pytest.raises(AssertionError):
            Products([product], 3, 1)
