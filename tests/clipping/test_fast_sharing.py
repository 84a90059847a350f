"""The fast engine where a parameter is used more than once, or not at all."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_fast_support import both_paths as both_paths
from test_fast_support import largest_error
from test_fast_support import one_thread as one_thread
from torch import Tensor, nn

from tacit.clipping.contract import Layout
from tacit.clipping.fast import FastEngine
from tacit.clipping.layers.recording import Recording
from tacit.clipping.layers.slots import Slots
from tacit.clipping.rules import Flat


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Twice(nn.Module):
    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.layer(x).tanh()).flatten(1))


@pytest.mark.parametrize("views", [1, 2])
def test_a_module_called_twice(views: int) -> None:
    assert largest_error(Twice(nn.Linear(4, 4), 4), torch.randn(4, 4), views=views) <= 1
    assert (
        largest_error(
            Twice(nn.Conv2d(2, 2, 3, padding=1), 32), torch.randn(4, 2, 4, 4), views=views
        )
        <= 1
    )
    assert largest_error(Twice(nn.GroupNorm(1, 2), 32), torch.randn(4, 2, 4, 4), views=views) <= 1


class Pyramid(nn.Module):
    """The same kernel at two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Conv2d(2, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.kernel(x).flatten(1).sum(1) * self.kernel(x[:, :, ::2, ::2]).flatten(1).sum(1)


def test_a_convolution_called_at_two_sizes() -> None:
    assert (
        largest_error(Pyramid(), torch.randn(4, 2, 6, 6), loss=lambda model, batch: model(batch[0]))
        <= 1
    )


class LanguageModel(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(9, 4)
        self.positions = nn.Embedding(8, 4)
        self.block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 9, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.block(x))


@pytest.mark.parametrize("records", [1, 4, 5])
def test_tied_weights_and_shared_positions(records: int) -> None:
    assert largest_error(LanguageModel(tied=True), torch.randint(0, 9, (records, 8))) <= 1


def test_a_view_of_all_of_a_parameter_is_the_parameter() -> None:
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(F.linear(x, self.weight).tanh(), self.weight.view(4, 4))

    model = Viewed()
    slots = Slots(dict(model.named_parameters()), Layout.of(model, Flat(1.0).grouping))
    assert slots.resolve(model.weight.view(4, 4)) == [slots.whole("weight")]
    assert slots.resolve(model.weight.t()) != [slots.whole("weight")]
    assert largest_error(model, torch.randn(5, 4)) <= 1


def test_tied_weights_with_views() -> None:
    assert largest_error(LanguageModel(tied=True), torch.randint(0, 9, (6, 5)), views=3) <= 1


class Autoencoder(nn.Module):
    """The same matrix forwards and, transposed, backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.encode(x).tanh(), self.encode.weight.t())


def test_a_weight_and_its_transpose() -> None:
    assert largest_error(Autoencoder(), torch.randn(4, 4)) <= 1


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(5, 4)
        self.unused = nn.Linear(3, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        self.unused(left)
        return self.left(left) * self.right(right).sigmoid()


def test_several_inputs_and_a_layer_that_the_loss_does_not_reach() -> None:
    assert largest_error(TwoInputs(), torch.randn(4, 3), torch.randn(4, 5)) <= 1


class LastOutput(nn.Module):
    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.recurrent = recurrent
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


def squared_outputs(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return model(batch[0]).flatten(1).square().sum(1)


class Alone(nn.Module):
    """A parameter that only autograd can follow, so that the module becomes a unit."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.exp()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)),
        LastOutput(nn.LSTM(4, 4, batch_first=True)),
        LastOutput(nn.GRU(4, 4, 2, batch_first=True)),
        Twice(nn.Linear(4, 4), 12),
        nn.Sequential(nn.Linear(4, 4), Alone(), nn.Linear(4, 2)),
    ],
    ids=["once", "lstm", "gru", "twice", "unit"],
)
def test_nothing_of_a_step_outlives_it(model: nn.Module) -> None:
    engine = FastEngine(model, Flat(1.0))
    batch = (torch.randn(6, 3, 4),)
    left = []
    for _ in range(4):
        engine.clipped_sum(squared_outputs, [batch], views=1)
        gc.collect()
        left.append(sum(type(each) is Tensor for each in gc.get_objects()))
    assert left[1] == left[2] == left[3]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("middle", [nn.Tanh(), Alone()], ids=["read", "unit"])
def test_no_attempt_at_a_first_step_waits_for_a_collector(
    middle: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recordings that were not the last one hold a whole batch: its inputs and gradients."""
    made: list[weakref.ref[Recording]] = []
    original = FastEngine._recording

    def noted(engine: FastEngine, *given: Any) -> Recording:
        recording = original(engine, *given)
        made.append(weakref.ref(recording))
        return recording

    monkeypatch.setattr(FastEngine, "_recording", noted)
    engine = FastEngine(nn.Sequential(nn.Linear(4, 4), middle, nn.Linear(4, 2)), Flat(1.0))
    gc.collect()
    gc.disable()
    try:
        engine.clipped_sum(squared_outputs, [(torch.randn(6, 3, 4),)], views=1)
        assert len(made) > 1 and not any(one() for one in made)
    finally:
        gc.enable()
