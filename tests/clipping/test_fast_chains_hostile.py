"""Chains of linear layers in hands that change the model within a pass, or run two at once."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_fast_chains import close, network, rows, summed
from test_fast_chains import taken as taken
from test_fast_support import CLIP, by_loop, squared_loss
from test_fast_support import both_paths as both_paths
from test_fast_support import one_thread as one_thread
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tacit.clipping.contract import Batch
from tacit.clipping.fast import FastEngine
from tacit.clipping.rules import Flat
from tacit.errors import ModelError

Loss = Callable[[nn.Module, Batch], Tensor]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def another_activation(model: nn.Module, batch: Batch) -> Tensor:
    assert isinstance(model, nn.Sequential)
    own, model[1] = model[1], nn.Tanh()
    try:
        return squared_loss(model, batch)
    finally:
        model[1] = own


def one_more_layer(model: nn.Module, batch: Batch) -> Tensor:
    assert isinstance(model, nn.Sequential)
    model.append(nn.Tanh())
    try:
        return squared_loss(model, batch)
    finally:
        model.pop(-1)


def a_frozen_layer(model: nn.Module, batch: Batch) -> Tensor:
    assert isinstance(model, nn.Sequential)
    model[0].requires_grad_(False)
    try:
        return squared_loss(model, batch)
    finally:
        model[0].requires_grad_(True)


def a_copy_as_teacher(model: nn.Module, batch: Batch) -> Tensor:
    teacher = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.zero_()
        target = teacher(batch[0])
    assert not target.any()
    return (model(batch[0]) - target).square().sum(1)


def several_gradients_at_once(model: nn.Module, batch: Batch) -> Tensor:
    x = batch[0].detach().requires_grad_()
    y = model(x)
    directions = torch.eye(y.shape[1], dtype=y.dtype)[:2, None].expand(2, *y.shape)
    (slopes,) = torch.autograd.grad(y, x, directions, is_grads_batched=True)
    return squared_loss(model, (batch[0] + slopes.sum(0), batch[1]))


def gradients_of_nothing(model: nn.Module, batch: Batch) -> Tensor:
    x = batch[0].detach().requires_grad_()
    y = model(x)
    nothing = torch._efficientzerotensor(y.shape, dtype=y.dtype)
    (slopes,) = torch.autograd.grad(y, x, nothing)
    return squared_loss(model, (batch[0] + slopes, batch[1]))


class _Doubled(TorchDispatchMode):
    """Doubles every product with a bias."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return 2 * found if func is torch.ops.aten.addmm.default else found


def a_mode_below(model: nn.Module, batch: Batch) -> Tensor:
    with _Doubled():
        return squared_loss(model, batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "loss",
    [
        *(another_activation, one_more_layer, a_frozen_layer, a_copy_as_teacher),
        *(several_gradients_at_once, gradients_of_nothing, a_mode_below),
    ],
)
def test_what_a_loss_does_to_the_model_counts(
    taken: list[int], loss: Loss, dtype: torch.dtype
) -> None:
    model, batch = network(dtype=dtype), rows(dtype)
    engine = FastEngine(model, Flat(CLIP))
    for each in (squared_loss, squared_loss, loss, loss, squared_loss):
        assert close(summed(engine, batch, loss=each), by_loop(model, Flat(CLIP), batch, 1, each))
    assert taken and type(model) is nn.Sequential


def test_a_model_is_the_same_to_whoever_looks_within_a_pass(taken: list[int]) -> None:
    model, batch = network(), rows()
    engine = FastEngine(model, Flat(CLIP))
    shown = repr(model)
    summed(engine, batch)

    def looking(model: nn.Module, batch: Batch) -> Tensor:
        assert repr(model) == shown and isinstance(model, nn.Sequential)
        losses = squared_loss(model, batch)
        model.forward = own
        return losses

    own = model.forward
    summed(engine, batch, loss=looking)
    assert taken == [3] and model.__dict__["forward"] is own  # what the user has put there


def test_layers_that_were_not_seen_before_are_looked_at(taken: list[int]) -> None:
    model, batch = network(), rows(count=20)
    engine = FastEngine(model, Flat(CLIP))

    def first_layer(model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, nn.Sequential)
        found: Tensor = model[0](batch[0]).square().sum(1)
        return found

    def mixed(model: nn.Module, batch: Batch) -> Tensor:
        outputs = model(batch[0])
        return (outputs - outputs.flip(0)).square().sum(1)

    summed(engine, batch, loss=first_layer)
    with pytest.raises(ModelError, match="depends on other records"):
        summed(engine, batch, loss=mixed)


def test_layers_without_bias_or_without_the_attribute(taken: list[int]) -> None:
    model = nn.Sequential(nn.Linear(40, 9, bias=False), nn.ReLU(), nn.Linear(9, 3, bias=False))
    model.double()
    engine, batch = FastEngine(model, Flat(CLIP)), rows()
    for _ in range(2):
        assert close(summed(engine, batch), by_loop(model, Flat(CLIP), batch))
    assert taken == [2]
    del model[2].bias
    model[2].forward = lambda x: nn.functional.linear(x, model[2].weight)
    engine = FastEngine(model, Flat(CLIP))
    for _ in range(2):
        assert close(summed(engine, batch), by_loop(model, Flat(CLIP), batch))
    assert taken == [2]


def test_another_thread_meets_no_recording_but_its_own(taken: list[int]) -> None:
    """One thread is in the middle of a pass while another uses the model, with a mode and without,
    and goes back through it."""
    model, batch, other = network(), rows(), rows()
    engines = [FastEngine(model, Flat(CLIP)) for _ in range(2)]
    for engine in engines:
        summed(engine, batch)
    expected = by_loop(model, Flat(CLIP), batch)
    others = by_loop(model, Flat(CLIP), other)
    found: list[Tensor] = []

    def elsewhere() -> None:
        found.append(summed(engines[1], other))
        with torch.device("cpu"):
            losses = squared_loss(model, other).sum()
        found.extend(torch.autograd.grad(losses, list(model.parameters())))

    def interrupted(model: nn.Module, batch: Batch) -> Tensor:
        before = model(batch[0])
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return squared_loss(model, batch) + 0 * before.sum(1)

    taken.clear()
    assert close(summed(engines[0], batch, loss=interrupted), expected)
    assert taken and close(found[0], others)
    assert all(bool(gradient.any()) for gradient in found[1:])
    assert type(model) is nn.Sequential
