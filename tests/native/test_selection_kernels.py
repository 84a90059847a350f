"""Compiled rectified numbers and largest numbers of windows against torch, bit by bit."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tacit import native
from tacit.clipping.fast import FastEngine
from tacit.clipping.layers import selecting
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import Flat
from tacit.native import Library

LAST = torch.channels_last
Function = Callable[[Tensor], Tensor]


def awkward(*shape: int) -> Tensor:
    """Numbers with many equal ones, zeros of both signs, and some that are none or not finite."""
    x = torch.randn(shape).mul(2).round()
    for value in (-0.0, float("nan"), float("inf"), -float("inf")):
        x.masked_fill_(torch.rand(shape) < 0.03, value)
    return x


def assert_same(ours: Function, theirs: Function, x: Tensor) -> None:
    """The same numbers, and the same gradients from gradients in either format, signs pending."""
    x.requires_grad_()
    found, expected = ours(x), theirs(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit() & found.isfinite(), expected.signbit() & expected.isfinite())
    form = LAST if x.dim() == 4 else torch.contiguous_format
    some = torch.randn(found.shape)
    for g in (some, some.contiguous(memory_format=form), torch._neg_view(some)):
        g[torch.rand(g.shape) < 0.01] = float("inf")
        gradients = (torch.autograd.grad(y, x, g, retain_graph=True)[0] for y in (found, expected))
        torch.testing.assert_close(*gradients, rtol=0, atol=0, equal_nan=True)


def taken(found: Tensor) -> Tensor:
    """What a replacement returned, which must not have left the call to torch."""
    assert found is not NotImplemented
    return found


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of any size are worth a call."""
    monkeypatch.setattr(selecting, "_FEWEST", 1)


@pytest.mark.parametrize("size", [1, 15, 511, 512, 513, 5000])
def test_rectified_numbers(kernels: Library, size: int) -> None:
    torch.manual_seed(size)
    assert_same(lambda x: taken(selecting.relu(x)), torch.relu, awkward(size))
    images = awkward(size, 3, 2, 2).contiguous(memory_format=LAST)
    assert_same(lambda x: taken(selecting.relu(x)), torch.relu, images)
    assert selecting.relu(images).is_contiguous(memory_format=LAST)


@pytest.mark.parametrize("seed", range(24))
def test_largest_of_windows(kernels: Library, seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    window = (chance.randint(1, 4), chance.randint(2, 4))
    size = [n * chance.randint(1, 4) + chance.randint(0, n - 1) for n in window]
    shape = (chance.randint(1, 20), chance.choice([16, 32, 80]), *size)
    x = awkward(*shape).contiguous(memory_format=LAST)
    assert_same(
        lambda x: taken(selecting.max_pool2d(x, window)), lambda x: F.max_pool2d(x, window), x
    )


@pytest.mark.parametrize("seed", range(24))
def test_largest_of_windows_that_overlap_or_leave_pixels_out(kernels: Library, seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    window = (chance.randint(1, 4), chance.randint(1, 4))
    step = (chance.randint(1, 5), chance.randint(1, 5))
    size = [n + chance.randint(0, 9) for n in window]
    shape = (chance.randint(1, 20), chance.choice([16, 32, 80]), *size)
    x = awkward(*shape).contiguous(memory_format=LAST)
    if min(size) == max(size) == 1:
        x = awkward(*shape[:2], 1, 2).contiguous(memory_format=LAST)  # a pixel has no format

    def found(x: Tensor) -> Tensor:
        return taken(selecting.max_pool2d(x, window, step))

    assert_same(found, lambda x: F.max_pool2d(x, window, step), x)


@pytest.mark.parametrize(
    "options",
    [
        {"stride": (1, 1, 1)},
        {"padding": 1},
        {"dilation": 2},
        {"ceil_mode": True},
        {"return_indices": True},
        {"stride": 0},
        {"kernel_size": (2, 2, 2)},
        {"kernel_size": 9},
    ],
)
def test_other_windows_are_left_to_torch(kernels: Library, options: dict[str, object]) -> None:
    x = torch.randn(2, 16, 8, 8, requires_grad=True).to(memory_format=LAST)
    given: dict[str, object] = {"kernel_size": 2, **options}
    assert selecting.max_pool2d(x, **given) is NotImplemented  # type: ignore[arg-type]


def test_other_tensors_are_left_to_torch(kernels: Library) -> None:
    x = torch.randn(2, 16, 8, 8, requires_grad=True)
    narrow = torch.randn(2, 12, 8, 8, requires_grad=True).to(memory_format=LAST)
    for left in (x, narrow, x.double().to(memory_format=LAST)):
        assert selecting.max_pool2d(left, 2) is NotImplemented
    for left in (x.detach(), x.double(), x[:, ::2], x.transpose(2, 3)):
        assert selecting.relu(left) is NotImplemented
    assert selecting.relu(x, inplace=True) is NotImplemented


def test_numbers_in_other_layouts_are_left_to_torch(kernels: Library) -> None:
    x = torch.randn(4, 16).relu().requires_grad_()
    nested = torch.nested.nested_tensor([torch.randn(3), torch.randn(2)], requires_grad=True)
    for left in (x.to_sparse_csr(), x.to_sparse(), x.to_mkldnn(), nested):
        assert selecting.relu(left) is NotImplemented
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        assert selecting.relu(dual) is NotImplemented


def test_windows_given_in_another_way_are_left_to_torch(kernels: Library) -> None:
    x = torch.randn(2, 16, 8, 8, requires_grad=True).to(memory_format=LAST)
    assert selecting.max_pool2d(x, np.int64(2)) is NotImplemented  # type: ignore[arg-type]
    assert selecting.max_pool2d(x, 2, np.int64(2)) is NotImplemented  # type: ignore[arg-type]


def test_hooks_on_saved_tensors_change_nothing(kernels: Library) -> None:
    """They may keep a float in fewer bits, but not bits that tell which numbers were dropped."""
    torch.manual_seed(0)
    x = torch.randn(2, 16, 8, 8).to(memory_format=LAST).requires_grad_()

    def slopes(relu: Function, pool: Function) -> Tensor:
        with saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: t.float()):
            found = pool(relu(x))
        return torch.autograd.grad(found.sum(), x)[0]

    ours = slopes(selecting.relu, lambda x: taken(selecting.max_pool2d(x, 2)))
    assert torch.equal(ours, torch.autograd.grad(F.max_pool2d(torch.relu(x), 2).sum(), x)[0])


def test_several_gradients_at_once(kernels: Library) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 16, 8, 8).to(memory_format=LAST).requires_grad_()
    y = taken(selecting.max_pool2d(taken(selecting.relu(x)), 2))
    several = torch.randn(3, *y.shape)
    found = torch.autograd.grad(y, x, several, is_grads_batched=True, retain_graph=True)[0]
    each = [torch.autograd.grad(y, x, g, retain_graph=True)[0] for g in several]
    torch.testing.assert_close(found, torch.stack(each), rtol=0, atol=0)


class _Checkpointed(nn.Module):
    """No rule covers its parameter, and its number cannot be told under a transform."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(9))

    def forward(self, x: Tensor) -> Tensor:
        float(x.sum())
        found: Tensor = checkpoint(self.body, x, use_reentrant=False)
        return found

    def body(self, x: Tensor) -> Tensor:
        return torch.relu(self.weight.sin() * x)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_checkpoint_in_a_module_that_runs_record_by_record(kernels: Library) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(_Checkpointed(), nn.Linear(9, 2))

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        outputs: Tensor = model(batch[0])
        return outputs.square().sum(1)

    x = torch.randn(3, 9)
    found = FastEngine(model, Flat(0.5)).clipped_sum(loss, [(x,)], views=1).vector
    expected = torch.zeros_like(found)
    for row in x.split(1):
        slopes = torch.autograd.grad(loss(model, (row,)).sum(), [*model.parameters()])
        whole = torch.cat([slope.flatten() for slope in slopes])
        expected += whole * (0.5 / whole.norm()).clamp_max(1)
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-6)


def test_gradients_are_differentiable(kernels: Library) -> None:
    torch.manual_seed(0)
    images = torch.randn(3, 16, 7, 5).contiguous(memory_format=LAST)

    def penalty(relu: Function, pool: Function) -> Tensor:
        x = images.clone().requires_grad_()
        loss = pool(relu(x * x - 0.5)).pow(3).sum()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return torch.autograd.grad(slope.pow(2).sum(), x)[0]

    found = penalty(selecting.relu, lambda x: taken(selecting.max_pool2d(x, (3, 2))))
    torch.testing.assert_close(found, penalty(torch.relu, lambda x: F.max_pool2d(x, (3, 2))))


class _Pooled(nn.Module):
    """Rectified and pooled, with what is rectified used a second time."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 32, 3, padding=1)
        self.third = nn.Linear(32 * 6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = F.max_pool2d(self.second(x).relu() + x, 4, 4)
        return self.third(x.flatten(1))


def test_engine(kernels: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = _Pooled().to(memory_format=LAST)
    calls = []
    for name in ("rectified_back", "largest_back"):
        before = getattr(Library, name)

        def counted(*a: object, before: Callable[..., Tensor] = before, name: str = name) -> Tensor:
            calls.append(name)
            return before(*a)

        monkeypatch.setattr(Library, name, counted)
    batch = (
        torch.randn(6, 3, 13, 9).contiguous(memory_format=LAST),
        torch.randint(4, (6,)),
    )

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    found = FastEngine(model, Flat(0.5)).clipped_sum(loss, [batch], views=1).vector
    assert set(calls) == {"rectified_back", "largest_back"}
    exact = copy.deepcopy(model).double()
    wide = (batch[0].double(), batch[1])
    expected = ReferenceEngine(exact, Flat(0.5)).clipped_sum(loss, [wide], views=1).vector
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=5e-6)
    with native.limited_to(0):
        alone = FastEngine(model, Flat(0.5)).clipped_sum(loss, [batch], views=1).vector
    torch.testing.assert_close(found, alone, rtol=0, atol=5e-6)
