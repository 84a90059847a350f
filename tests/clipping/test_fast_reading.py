"""Uses of parameters read off autograd's graph: the same sums, and nothing missed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_fast_support import CLIP, batch_of, by_loop, rules_for, squared_loss
from test_fast_support import both_paths as both_paths
from test_fast_support import one_thread as one_thread
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tacit.clipping import fast as fast_module
from tacit.clipping.contract import Batch
from tacit.clipping.fast import FastEngine
from tacit.clipping.rules import Flat
from tacit.errors import ModelError


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
            found = engine.clipped_sum(loss, [batch], views).vector
            expected = by_loop(model, rule, batch, views, loss)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * max(rule.bounds))
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
        found = engine.clipped_sum(squared_loss, [batch], views).vector
        expected = by_loop(model, Flat(CLIP), batch, views)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * CLIP)
        monkeypatch.setattr(fast_module, "intercepted", only_read)


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
        found = engine.clipped_sum(squared_loss, [batch], 1).vector
        expected = by_loop(model, Flat(CLIP), batch)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * CLIP)


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
        found = engine.clipped_sum(squared_loss, [batch], 1).vector
        expected = by_loop(model, Flat(CLIP), batch)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * CLIP)


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
        found = engine.clipped_sum(squared_loss, [batch], 1).vector
        expected = by_loop(model, Flat(CLIP), batch)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * CLIP)


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


class Hooked(nn.Module):
    """Layers whose outputs' gradients are changed on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        for layer in (self.first, self.second, self.last):
            x = layer(x.tanh())
            outputs.append(x)
        if x.requires_grad:
            for factor, output in enumerate(outputs, 2):
                output.register_hook(partial(torch.mul, factor))
        return x


def test_hooks_on_outputs_change_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Hooked().double()
    engine, batch = FastEngine(model, Flat(CLIP)), batch_of(torch.randn(5, 4).double())
    for _ in range(2):
        found = engine.clipped_sum(squared_loss, [batch], 1).vector
        expected = by_loop(model, Flat(CLIP), batch)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * CLIP)
        monkeypatch.setattr(fast_module, "intercepted", only_read)


def test_no_step_that_was_read_outlives_itself() -> None:
    """Nothing waits for a collector, also after an error on the way back."""
    model, x = perceptron(), torch.randn(5, 6)
    engine = FastEngine(model, Flat(CLIP))
    outputs: list[weakref.ref[Tensor]] = []
    broken = False

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        found = model(batch[0])
        outputs.append(weakref.ref(found))
        if broken:
            found.register_hook(lambda g: g.view(7))
        return found.square().sum(1)

    for _ in range(3):
        engine.clipped_sum(loss, [(x,)], 1)
    gc.collect()
    gc.disable()
    try:
        del outputs[:]
        engine.clipped_sum(loss, [(x,)], 1)
        broken = True
        with pytest.raises(RuntimeError, match="shape"):
            engine.clipped_sum(loss, [(x,)], 1)
        assert [each() for each in outputs] == [None, None]
    finally:
        gc.enable()


class Waking(nn.Module):
    """Starts at some step what may not be done with private records."""

    mean: Tensor
    table: Tensor

    def __init__(self, what: str) -> None:
        super().__init__()
        self.linear, self.weight = nn.Linear(3, 2), nn.Parameter(torch.randn(7, 3))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("table", torch.randn(7, 3))
        self.what, self.awake = what, False

    def forward(self, x: Tensor) -> Tensor:
        ids, limit = x.long() % 7, 0.1 if self.awake else None
        h = F.embedding(ids, self.weight, max_norm=limit if self.what == "rows" else None)
        if self.what == "frozen rows":
            h = h + F.embedding(ids, self.table, max_norm=limit)
        if self.what == "bags":
            h = h + F.embedding_bag(ids, self.table, max_norm=limit).unsqueeze(1)
        h = h.sum(1)
        if self.what == "batch norm" and self.awake:
            h = F.batch_norm(h, self.mean, self.mean + 1, training=True)
        if self.what == "batch norm of inputs" and self.awake:
            h = h + F.batch_norm(x[:, :3], None, None, training=True)
        found: Tensor = self.linear(h)
        return found


@pytest.mark.parametrize(
    "what", ["rows", "frozen rows", "bags", "batch norm", "batch norm of inputs"]
)
def test_what_is_refused_is_refused_at_any_step(what: str) -> None:
    model = Waking(what).double()
    engine = FastEngine(model, Flat(CLIP))
    batch = batch_of(torch.arange(20).view(4, 5).double())
    for _ in range(2):
        engine.clipped_sum(squared_loss, [batch], 1)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.awake = True
    with pytest.raises(ModelError, match=r"max_norm|batch_norm"):
        engine.clipped_sum(squared_loss, [batch], 1)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("option", ["stride", "padding", "dilation"])
def test_options_of_a_convolution_given_once_for_all_dimensions(option: str) -> None:
    options: dict[str, Any] = {option: (2,)}
    model = nn.Sequential(nn.Conv2d(2, 3, 3, **options), nn.Flatten(), nn.LazyLinear(2)).double()
    model(torch.randn(1, 2, 7, 7).double())
    steps_agree(model, torch.randn(4, 2, 7, 7), torch.randn(3, 2, 7, 7))


def test_checkpoints_are_computed_once_more_and_no_oftener() -> None:
    calls = 0

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))

        def forward(self, x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            found: Tensor = self.layers(x).tanh()
            return found

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.block, self.last = nn.Linear(4, 4), Counted(), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            middle = checkpoint(self.block, self.first(x), use_reentrant=False)
            found: Tensor = self.last(middle)
            return found

    model = Checkpointed().double()
    engine, batch = FastEngine(model, Flat(CLIP)), batch_of(torch.randn(5, 4).double())
    engine.clipped_sum(squared_loss, [batch], 1)
    calls = 0
    found = engine.clipped_sum(squared_loss, [batch], 1).vector
    assert calls == 2
    torch.testing.assert_close(found, by_loop(model, Flat(CLIP), batch), rtol=0, atol=1e-13)
