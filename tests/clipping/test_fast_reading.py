"""Uses of parameters read off autograd's graph: the same sums, and nothing missed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_fast_support import CLIP, assert_agrees, batch_of, rules_for, squared_loss
from test_fast_support import both_paths as both_paths
from test_fast_support import one_thread as one_thread
from torch import Tensor, nn

from tacit.clipping import fast as fast_module
from tacit.clipping.contract import Batch
from tacit.clipping.fast import FastEngine
from tacit.clipping.rules import Flat


class MeanOfTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4, padding_idx=0)

    def forward(self, ids: Tensor) -> Tensor:
        summed: Tensor = self.table(ids.long()).sum(1)
        return summed / (ids != 0).sum(1, keepdim=True).clamp_min(1)


def perceptron() -> nn.Sequential:
    first = nn.Linear(6, 5, bias=False)
    half = nn.Linear(5, 4)
    half.bias.requires_grad_(False)
    return nn.Sequential(first, nn.Tanh(), half, nn.ReLU(inplace=True), nn.Linear(4, 3))


def convnet() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, stride=2),
        nn.Tanh(),
        nn.ConvTranspose2d(4, 3, 2, bias=False),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 3),
    )


READABLE: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "perceptron": (perceptron, lambda rows: torch.randn(rows, 6)),
    "convnet": (convnet, lambda rows: torch.randn(rows, 2, 6, 6)),
    "one dimension": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 2), nn.Flatten(), nn.Linear(16, 2)),
        lambda rows: torch.randn(rows, 3, 5),
    ),
    "tokens": (
        lambda: nn.Sequential(MeanOfTokens(), nn.Linear(4, 2)),
        lambda rows: torch.randint(0, 9, (rows, 7)).float(),
    ),
}


def only_read(*_: Any) -> Any:
    raise AssertionError("this step was intercepted")


def steps_agree(
    model: nn.Module,
    *inputs: Tensor,
    loss: Callable[[nn.Module, Batch], Tensor] = squared_loss,
    views: int = 1,
) -> None:
    """Several steps of one engine are what a loop over records gives, in double precision."""
    model.double()
    for rule in rules_for(model):
        engine = FastEngine(model, rule)
        for x in inputs:
            batch = batch_of(x.double())
            assert_agrees(engine, model, batch, views, loss)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("name", READABLE)
def test_after_the_first_batch_nothing_is_intercepted(
    name: str, views: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, records = READABLE[name]
    model = make().double()
    engine = FastEngine(model, Flat(CLIP))
    for count in (2, 5, 1, 4):
        batch = batch_of(records(views * count).double())
        assert_agrees(engine, model, batch, views)
        monkeypatch.setattr(fast_module, "Interception", only_read)


@pytest.mark.parametrize("name", READABLE)
def test_both_ways_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, records = READABLE[name]
    model, batch = make(), batch_of(records(6), dtype=torch.float32)
    sums = []
    for readers in (fast_module.READERS, {}):
        monkeypatch.setattr(fast_module, "READERS", readers)
        engine = FastEngine(model, Flat(CLIP), deterministic=True)
        sums += [engine.clipped_sum(squared_loss, [batch], 1).vector for _ in range(2)]
    assert all(torch.equal(sums[0], other) for other in sums[1:])


class Odd(nn.Module):
    """A linear layer, called or used in one more way."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.square = nn.Parameter(torch.randn(4, 4))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.linear.weight, self.linear.bias
        turned = weight.t()
        match self.how:
            case "plain":
                found: Tensor = self.linear(x)
                return found
            case "twice":
                return torch.tanh(self.linear(self.linear(x)))
            case "one transposition for two":
                return torch.addmm(bias, torch.addmm(bias.detach(), x, turned).tanh(), turned)
            case "transposition used elsewhere":
                return torch.addmm(bias, x, turned) * turned.sum()
            case "not transposed":
                return torch.addmm(bias, x, weight)
            case "transposed twice":
                return torch.addmm(bias, x, turned.t())
            case "scaled":
                return torch.addmm(bias, x, turned, beta=0.5, alpha=2)
            case "bias of one":
                return torch.addmm(bias[:1], x, turned)
            case "as an input":
                return x @ torch.mm(self.square, turned)
            case "own function":
                return Twice.apply(self.linear(x))  # type: ignore[no-untyped-call,no-any-return]
            case "also in the open":
                return self.linear(x) * self.square.diagonal()
        raise ValueError(self.how)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


@pytest.mark.filterwarnings("ignore:Odd", "ignore:Linear")
@pytest.mark.parametrize(
    "how",
    [
        "twice",
        "one transposition for two",
        "transposition used elsewhere",
        "not transposed",
        "transposed twice",
        "scaled",
        "bias of one",
        "as an input",
        "own function",
        "also in the open",
    ],
)
def test_what_cannot_be_read_is_intercepted(how: str) -> None:
    """From the first step on, and after steps that were read."""
    model = nn.Sequential(nn.Linear(4, 4), Odd(how), nn.Linear(4, 2))
    steps_agree(model, torch.randn(5, 4), torch.randn(3, 4))
    model[1].how = "plain"
    engine = FastEngine(model, Flat(CLIP))
    for now in ("plain", "plain", how):
        model[1].how = now
        batch = batch_of(torch.randn(5, 4).double())
        assert_agrees(engine, model, batch)


class Positions(nn.Module):
    """Two positions of each record in one layer, laid out in a way that may change."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(6, 2)
        self.layout = "records first"

    def forward(self, x: Tensor) -> Tensor:
        across = x.transpose(0, 1)
        match self.layout:
            case "records first":
                h = self.a(x.reshape(-1, 4)).view(-1, 2, 3)
            case "positions first":
                h = self.a(across.contiguous()).transpose(0, 1)
            case "after a use that leads nowhere":
                self.a(x.reshape(-1, 4))
                h = self.a(across.reshape(-1, 4)).view(2, -1, 3).transpose(0, 1)
        found: Tensor = self.b(h.tanh().reshape(-1, 6))
        return found


@pytest.mark.parametrize("layout", ["positions first", "after a use that leads nowhere"])
def test_positions_that_change_places(layout: str) -> None:
    model = Positions().double()
    engine = FastEngine(model, Flat(CLIP))
    for now in ("records first", "records first", layout, layout):
        model.layout = now
        batch = batch_of(torch.randn(5, 2, 4).double())
        assert_agrees(engine, model, batch)


class Changing(nn.Module):
    """Uses its weight in another way from some step on, and may count its calls in a buffer."""

    calls: Tensor

    def __init__(self, counting: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(1))
        self.counting = counting
        self.odd = False

    def forward(self, x: Tensor) -> Tensor:
        if self.counting == "in place":
            self.calls += 1
        if self.counting == "replaced":
            self.calls = self.calls + 1
        weight = self.linear.weight
        return self.dropout(self.linear(x) * weight.sum() if self.odd else self.linear(x))


@pytest.mark.filterwarnings("ignore:Changing")
@pytest.mark.parametrize("counting", ["not", "in place", "replaced"])
def test_a_use_that_comes_later_is_found(counting: str) -> None:
    model = nn.Sequential(Changing(counting), nn.Linear(4, 2)).double()
    model[0].dropout.p = 0.0
    engine = FastEngine(model, Flat(CLIP))
    for odd in (False, False, True, False, True):
        model[0].odd = odd
        batch = batch_of(torch.randn(5, 4).double())
        assert_agrees(engine, model, batch)


@pytest.mark.parametrize("counting", ["in place", "replaced"])
def test_a_model_that_writes_to_its_buffers_runs_once_a_step(counting: str) -> None:
    model = nn.Sequential(Changing(counting), nn.Linear(4, 2))
    engine = FastEngine(model, Flat(CLIP))
    batch = batch_of(torch.randn(5, 4), dtype=torch.float32)
    engine.clipped_sum(squared_loss, [batch], 1)
    before = float(model[0].calls)
    for _ in range(3):
        engine.clipped_sum(squared_loss, [batch], 1)
    assert float(model[0].calls) == before + 3


@pytest.mark.filterwarnings("ignore:Changing")
def test_a_pass_that_could_not_be_read_draws_no_random_numbers() -> None:
    """The same ones are drawn again, whichever way is taken in the end."""
    model = nn.Sequential(Changing("not"), nn.Linear(4, 2))
    engine = FastEngine(model, Flat(CLIP))
    batch = batch_of(torch.randn(5, 4), dtype=torch.float32)
    for step, odd in enumerate((False, False, True)):
        model[0].odd = odd
        torch.manual_seed(step)
        engine.clipped_sum(squared_loss, [batch], 1)
        drawn = torch.get_rng_state()
        torch.manual_seed(step)
        F.dropout(torch.ones(5, 4))
        assert torch.equal(drawn, torch.get_rng_state())


@pytest.mark.filterwarnings("ignore:Sequential")
def test_a_loss_that_is_a_parameter_is_not_passed_over() -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    model.register_parameter("free", nn.Parameter(torch.zeros(5)))
    engine = FastEngine(model, Flat(CLIP))
    batch = batch_of(torch.randn(5, 4), dtype=torch.float32)
    engine.clipped_sum(squared_loss, [batch], 1)
    with pytest.raises(Exception, match="free"):
        engine.clipped_sum(lambda model, _: model.get_parameter("free"), [batch], 1)


def test_leaves_of_others_get_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    offset = torch.zeros(4, requires_grad=True)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return squared_loss(model, (batch[0] + offset, batch[1]))

    engine = FastEngine(model, Flat(CLIP))
    batch = batch_of(torch.randn(5, 4), dtype=torch.float32)
    for _ in range(3):
        assert engine.clipped_sum(loss, [batch], 1).vector.any()
    assert offset.grad is None
    assert all(p.grad is None for p in model.parameters())
