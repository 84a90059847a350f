"""Models that hook, change, forbid or checkpoint, at steps that would be read."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_fast_reading import only_read, perceptron, steps_agree
from test_fast_support import (
    CLIP,
    assert_agrees,
    batch_of,
    by_loop,
    largest_error,
    squared_loss,
)
from test_fast_support import both_paths as both_paths
from test_fast_support import one_thread as one_thread
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tacit.clipping import fast as fast_module
from tacit.clipping.contract import Batch
from tacit.clipping.fast import FastEngine
from tacit.clipping.rules import Flat
from tacit.errors import ModelError


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
        assert_agrees(engine, model, batch)
        monkeypatch.setattr(fast_module, "Interception", only_read)


@pytest.mark.parametrize("channels", [3, 32])
def test_gradients_whose_signs_are_still_to_be_changed(channels: int) -> None:
    """Torch only marks them; kernels read memory as it is."""

    class Negated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                [nn.Conv2d(channels, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.Conv2d(32, 32, 3)]
            )
            self.last = nn.Linear(32, 2)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
                if x.requires_grad:
                    x.register_hook(torch._neg_view)
            return self.last(x.mean((2, 3)))

    model = Negated().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(5, channels, 12, 12).contiguous(memory_format=torch.channels_last)
    assert largest_error(model, images, rule=0) <= 1


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
