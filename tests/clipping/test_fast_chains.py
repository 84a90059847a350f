"""Linear layers that run as one node, from the second batch on: same bits, nobody passed by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_fast_support import CLIP, PerParameter, batch_of, by_loop, squared_loss
from test_fast_support import both_paths as both_paths
from test_fast_support import one_thread as one_thread
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from tacit.clipping.contract import Batch
from tacit.clipping.fast import FastEngine
from tacit.clipping.layers import chains
from tacit.clipping.rules import Flat
from tacit.errors import ModelError

ROWS = 6


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many layers each chain had that ran as one."""
    lengths: list[int] = []
    forward = chains._Chained.forward

    def counted(ctx: Any, anchor: Tensor, x: Tensor, chain: chains.Chain, *rest: Any) -> Tensor:
        lengths.append(len(chain.links))
        return forward(ctx, anchor, x, chain, *rest)

    monkeypatch.setattr(chains._Chained, "forward", counted)
    yield lengths


def network(*more: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    layers = (nn.Linear(40, 36), nn.ReLU(), nn.Linear(36, 30, bias=False), nn.Linear(30, 5))
    return nn.Sequential(*layers, *more).to(dtype)


def rows(dtype: torch.dtype = torch.float64, count: int = ROWS) -> Batch:
    return batch_of(torch.randn(count, 40, dtype=dtype), dtype=dtype)


def summed(engine: FastEngine, batch: Batch, views: int = 1, loss: Any = squared_loss) -> Tensor:
    return engine.clipped_sum(loss, [batch], views).vector


def close(found: Tensor, expected: Tensor) -> bool:
    single = found.dtype == torch.float32
    return bool((found - expected).abs().max() <= (1e-5 if single else 1e-12) * CLIP)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("views", [1, 3])
def test_a_chain_gives_what_its_layers_give(
    taken: list[int], dtype: torch.dtype, rectified: bool, views: int
) -> None:
    model = network(*([nn.ReLU()] if rectified else []), dtype=dtype)
    for rule in (Flat(CLIP), PerParameter(5)):
        engine, batch = FastEngine(model, rule), rows(dtype)
        first = summed(engine, batch, views)
        taken.clear()
        second = summed(engine, batch, views)
        assert taken == [3]
        assert torch.equal(first, second)
        assert close(second, by_loop(model, rule, batch, views))
        assert not summed(engine, (batch[0][:0], batch[1][:0])).any()
        one = (batch[0][:1], batch[1][:1])
        assert close(summed(engine, one), by_loop(model, rule, one))


def test_chains_between_other_layers(taken: list[int]) -> None:
    model = nn.Sequential(
        *(nn.Linear(40, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Tanh()),
        *(nn.Unflatten(1, (3, 4)), nn.Linear(4, 4), nn.ReLU(), nn.ReLU(), nn.Linear(4, 4)),
        *(nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3), nn.ReLU()),
    ).double()
    engine, batch = FastEngine(model, Flat(CLIP)), rows()
    for _ in range(2):
        taken.clear()
        assert close(summed(engine, batch), by_loop(model, Flat(CLIP), batch))
    assert taken == [2, 2]  # not those of several positions


def test_a_record_that_is_not_finite_is_silenced_alone(taken: list[int]) -> None:
    model, batch = network(dtype=torch.float32), rows(torch.float32)
    engine = FastEngine(model, Flat(CLIP))
    summed(engine, batch)
    for bad in (torch.inf, torch.nan, 1e30):
        batch[0][2] = bad
        others = tuple(torch.cat([t[:2], t[3:]]) for t in batch)
        found = summed(engine, batch)
        assert close(found, by_loop(model, Flat(CLIP), (others[0], others[1])))
    assert taken


class Seen(TorchFunctionMode):
    """Counts calls of linear layers."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is F.linear
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_hooks_are_called_also_where_they_come_later(
    taken: list[int], place: int, kind: str
) -> None:
    model, batch, calls = network(), rows(), []
    engine = FastEngine(model, Flat(CLIP))
    summed(engine, batch)
    expected = summed(engine, batch)
    taken.clear()
    handle = getattr(model[place], f"register_{kind}_hook")(lambda *_: calls.append(kind))
    assert close(summed(engine, batch), expected)
    assert calls and not taken
    handle.remove()
    assert close(summed(engine, batch), expected)
    assert taken == [3]


def test_hooks_for_all_modules_and_modes_see_every_layer(taken: list[int]) -> None:
    model, batch, calls = network(), rows(), []
    engine = FastEngine(model, Flat(CLIP))
    expected = summed(engine, batch)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: calls.append(1))
    try:
        assert close(summed(engine, batch), expected)
    finally:
        handle.remove()
    assert len(calls) == 5 and not taken

    def watched(model: nn.Module, batch: Batch) -> Tensor:
        with seen:
            return squared_loss(model, batch)

    seen = Seen()
    assert close(summed(engine, batch, loss=watched), expected)
    assert seen.count == 3 and not taken


def test_the_model_is_left_as_it_was_also_after_an_exception(taken: list[int]) -> None:
    model, batch = network(), rows()
    engine = FastEngine(model, Flat(CLIP))
    summed(engine, batch)

    def failing(model: nn.Module, batch: Batch) -> Tensor:
        squared_loss(model, batch)
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        summed(engine, batch, loss=failing)
    assert taken
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert all(p.grad is None for p in model.parameters())
    own = model.forward
    model.forward = lambda x: own(2 * x)
    assert close(summed(engine, batch), by_loop(model, Flat(CLIP), batch))
    assert model.__dict__["forward"](batch[0]).equal(own(2 * batch[0]))


def test_weights_that_were_moved_or_replaced_are_the_ones_that_count(taken: list[int]) -> None:
    model, batch = network(dtype=torch.float32), rows(torch.float32)
    engine = FastEngine(model, Flat(CLIP))
    summed(engine, batch)
    with torch.no_grad():
        model[0].weight.mul_(2)
        model[2].weight.data = torch.randn(36, 30).t()
        model[3].bias.data = torch.randn(10)[::2]
    assert close(summed(engine, batch), by_loop(model, Flat(CLIP), batch))
    model[0].weight = nn.Parameter(torch.randn(36, 40))
    for _ in range(2):
        assert close(summed(engine, batch), by_loop(model, Flat(CLIP), batch))
    assert len(taken) == 2


def test_layers_and_weights_that_are_used_twice(taken: list[int]) -> None:
    shared = nn.Linear(40, 40)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(40, 40), nn.Linear(40, 3)).double()
    model[3].weight = shared.weight
    engine, batch = FastEngine(model, Flat(CLIP)), rows()

    def again(model: nn.Module, batch: Batch) -> Tensor:
        return squared_loss(model, batch) + model(2 * batch[0]).square().sum(1)

    for loss in (squared_loss, again):
        for _ in range(2):
            assert close(
                summed(engine, batch, loss=loss), by_loop(model, Flat(CLIP), batch, 1, loss)
            )
    assert taken


def test_frozen_layers_are_no_part_of_a_chain(taken: list[int]) -> None:
    model, batch = network(nn.Linear(5, 5).double()), rows()
    model[2].weight.requires_grad_(False)
    engine = FastEngine(model, Flat(CLIP))
    for _ in range(2):
        assert close(summed(engine, batch), by_loop(model, Flat(CLIP), batch))
    assert all(length == 2 for length in taken)


def test_passes_that_are_taken_apart_or_differentiated(taken: list[int]) -> None:
    def sloped(model: nn.Module, batch: Batch) -> Tensor:
        x = batch[0].detach().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return squared_loss(model, batch) + slope.square().sum(1)

    def reopened(model: nn.Module, batch: Batch) -> Tensor:
        return checkpoint(model, batch[0], use_reentrant=False).square().sum(1)

    def without_gradient(model: nn.Module, batch: Batch) -> Tensor:
        with torch.no_grad():
            target = model(batch[0] + 1)
        return (model(batch[0]) - target).square().sum(1)

    for loss in (reopened, without_gradient, sloped):
        model, batch = network(), rows()
        engine = FastEngine(model, Flat(CLIP))
        summed(engine, batch)
        for _ in range(2):
            found = summed(engine, batch, loss=loss)
            assert close(found, by_loop(model, Flat(CLIP), batch, 1, loss)), loss.__name__
    assert taken


def test_losses_that_move_or_mix_rows_at_a_later_step_are_refused(taken: list[int]) -> None:
    def turned(model: nn.Module, batch: Batch) -> Tensor:
        order = batch[0].sum(1).argsort()
        return model(batch[0][order])[order.argsort()].square().sum(1)

    def mixed(model: nn.Module, batch: Batch) -> Tensor:
        outputs = model(batch[0])
        return (outputs - outputs[batch[0].sum(1).argsort()]).square().sum(1)

    for loss in (turned, mixed):
        model, batch = network(), rows(count=20)
        engine = FastEngine(model, Flat(CLIP))
        for _ in range(2):
            summed(engine, batch)
        with pytest.raises(ModelError, match="depends on other records"):
            summed(engine, batch, loss=loss)
    assert taken
