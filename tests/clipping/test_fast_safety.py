"""Nothing is missed, nothing is mixed, and the user's model is left alone."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_fast_support import CLIP, batch_of, by_loop, fast, largest_error, squared_loss
from test_fast_support import both_paths as both_paths
from test_fast_support import one_thread as one_thread
from torch import Tensor, nn

from tacit.clipping.contract import Batch
from tacit.clipping.fast import FastEngine
from tacit.clipping.layers import fallback
from tacit.clipping.rules import Flat
from tacit.errors import ArgumentError, ModelError


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    fallback._noticed.clear()


class Custom(nn.Module):
    """Own parameters, used in a way that no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4) + 1)
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) / self.scale.exp().cumsum(0)


class DataDependent(Custom):
    """Control flow that torch.func cannot map over records."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(self.scale[0]) > 0 else x


@pytest.mark.parametrize("kind", [Custom, DataDependent])
@pytest.mark.parametrize("views", [1, 3])
def test_a_module_without_a_rule_falls_back_with_one_notice(
    kind: type[nn.Module], views: int
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), kind(), kind(), nn.Linear(4, 2)).double()
    batch = batch_of(torch.randn(6, 4).double())
    with pytest.warns(UserWarning, match=kind.__name__) as notices:
        found = fast(model, Flat(CLIP), batch, views)
    assert sum(kind.__name__ in str(notice.message) for notice in notices) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert largest_error(model, torch.randn(6, 4), views=views) <= 1
    torch.testing.assert_close(found, by_loop(model, Flat(CLIP), batch, views))


class Bypass(nn.Module):
    """Reaches into a child's weight, by a function that has a rule or by one that has none."""

    def __init__(self, known: bool) -> None:
        super().__init__()
        self.linear, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.known = known

    def forward(self, x: Tensor) -> Tensor:
        if self.known:
            return self.head(self.linear(x) + F.linear(x, self.linear.weight))
        return self.head(torch.einsum("ri,oi->ro", x, self.linear.weight))


@pytest.mark.filterwarnings("ignore:Linear", "ignore:Bypass")
@pytest.mark.parametrize("known", [True, False])
def test_parameters_reached_past_their_module(known: bool) -> None:
    assert largest_error(Bypass(known), torch.randn(4, 4)) <= 1


def test_parameters_in_the_loss_are_refused() -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return squared_loss(model, batch) + model.get_parameter("0.weight").square().sum()

    model = nn.Sequential(nn.Linear(4, 2))
    with (
        pytest.raises(ModelError, match=r"'0\.weight'"),
        pytest.warns(UserWarning),
    ):
        fast(model, Flat(CLIP), batch_of(torch.randn(4, 4), dtype=torch.float32), loss=loss)


def test_rows_that_do_not_divide_into_views_are_refused() -> None:
    with pytest.raises(ArgumentError, match="views"):
        fast(nn.Linear(4, 2), Flat(CLIP), batch_of(torch.randn(4, 4), dtype=torch.float32), views=3)


@pytest.mark.filterwarnings("ignore:Custom")
def test_an_operation_in_place_after_a_module_without_a_rule() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Custom(), nn.ReLU(inplace=True), nn.Linear(4, 2))
    assert largest_error(model, torch.randn(4, 4)) <= 1


def test_a_batch_in_which_nothing_is_finite() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    batch = (torch.randn(5, 4).double(), torch.full((5,), float("nan")).double())
    assert not fast(model, Flat(CLIP), batch).any()


def test_parametrized_weights() -> None:
    parametrize = nn.utils.parametrizations.weight_norm
    model = nn.Sequential(parametrize(nn.Linear(4, 3)), nn.Tanh(), nn.Linear(3, 2))
    with pytest.warns(UserWarning, match="per record"):
        assert largest_error(model, torch.randn(4, 4)) <= 1


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class CentredWithParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / self.scale.exp().cumsum(0)


class DetachedStatistics(nn.Module):
    """Mixing that no gradient shows."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.detach().mean(0)


class Neighbours(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x.roll(1, 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mixer", [Centred, CentredWithParameter, DetachedStatistics, Neighbours])
def test_models_that_mix_records_are_refused(mixer: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), mixer(), nn.Linear(4, 2))
    with pytest.raises(ModelError, match="record"):
        fast(model, Flat(CLIP), batch_of(torch.randn(6, 4), dtype=torch.float32))


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.SyncBatchNorm(4), nn.LazyBatchNorm1d()])
def test_batch_norm_is_refused(layer: nn.Module) -> None:
    with pytest.raises(ModelError, match="GroupNorm"):
        FastEngine(nn.Sequential(nn.Linear(4, 4), layer), Flat(CLIP))


def test_batch_norm_is_refused_when_it_wakes_up_later() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    engine = FastEngine(model, Flat(CLIP))
    model.train()
    with pytest.raises(ModelError, match="GroupNorm"):
        engine.clipped_sum(squared_loss, [], 1)


def test_frozen_batch_norm_is_exact() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(12, 2))
    model(torch.randn(8, 2, 5))
    assert largest_error(model.eval(), torch.randn(4, 2, 5)) <= 1


def test_running_statistics_are_refused() -> None:
    layer = nn.InstanceNorm1d(3, affine=True, track_running_stats=True)
    with pytest.raises(ModelError, match="track_running_stats"):
        FastEngine(nn.Sequential(nn.Conv1d(2, 3, 2), layer), Flat(CLIP))


@pytest.mark.parametrize(
    "options", [{"max_norm": 1.0}, {"sparse": True}, {"scale_grad_by_freq": True}]
)
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_that_leak_are_refused(kind: type[nn.Module], options: dict[str, Any]) -> None:
    model = nn.Sequential(kind(5, 3, **options), nn.Flatten(), nn.LazyLinear(2))
    with torch.no_grad():
        model(torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(ModelError, match=next(iter(options))):
        fast(model, Flat(CLIP), batch_of(torch.randint(0, 5, (3, 4)), dtype=torch.float32))


def state_of(model: nn.Module) -> list[tuple[str, list[str], list[tuple[str, int]]]]:
    """Names, attributes and parameter identities of every module."""
    return [
        (name, sorted(module.__dict__), [(n, id(p)) for n, p in module._parameters.items()])
        for name, module in model.named_modules()
    ]


class Fragile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.broken = False

    def forward(self, x: Tensor) -> Tensor:
        if self.broken:
            raise ArithmeticError("broken on purpose")
        return x / self.scale


@pytest.mark.filterwarnings("ignore:Fragile")
def test_the_model_is_left_as_it_was_also_after_an_exception() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Fragile(), nn.Linear(4, 2)).double()
    before, values = state_of(model), copy.deepcopy(model.state_dict())
    attributes = [sorted(p.__dict__) for p in model.parameters()]
    engine = FastEngine(model, Flat(CLIP))
    batch = batch_of(torch.randn(4, 4).double())
    expected = engine.clipped_sum(squared_loss, [batch], 1).vector
    assert state_of(model) == before
    model[1].broken = True
    with pytest.raises(ArithmeticError):
        engine.clipped_sum(squared_loss, [batch], 1)
    model[1].broken = False
    assert state_of(model) == before
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert attributes == [sorted(p.__dict__) for p in model.parameters()]
    for name, value in model.state_dict().items():
        assert torch.equal(value, values[name])
    torch.testing.assert_close(engine.clipped_sum(squared_loss, [batch], 1).vector, expected)


def test_existing_gradients_and_evaluation_are_untouched() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).double()
    batch = batch_of(torch.randn(4, 4).double())
    squared_loss(model, batch).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    engine = FastEngine(model, Flat(CLIP))
    first = engine.clipped_sum(squared_loss, [batch], 1).vector
    with torch.no_grad():
        outputs = model.eval()(batch[0])
    model.train()
    assert torch.equal(first, engine.clipped_sum(squared_loss, [batch], 1).vector)
    assert torch.equal(outputs, model(batch[0]))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)


def test_a_loss_that_was_already_averaged_is_refused() -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(ModelError, match="one loss per row"):
        fast(
            model,
            Flat(CLIP),
            batch_of(torch.randn(4, 4), dtype=torch.float32),
            loss=lambda m, b: m(b[0]).mean(),
        )


def test_gradients_inside_the_loss_are_not_recorded() -> None:
    """Adversarial examples: the loss itself differentiates with respect to its input."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        x = batch[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(squared_loss(model, (x, batch[1])).sum(), x)
        return squared_loss(model, (batch[0] + 0.1 * slope.sign(), batch[1]))

    error = largest_error(
        nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(4, 4), loss=loss
    )
    assert error <= 1


@pytest.mark.filterwarnings("ignore:Sequential")
def test_second_derivatives_are_not_missed() -> None:
    """A gradient penalty: every record's loss contains the slope of the network itself."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        x = batch[0].clone().requires_grad_()
        losses = squared_loss(model, (x, batch[1]))
        (slope,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
        return losses + slope.square().sum(1)

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    assert largest_error(model, torch.randn(4, 4), loss=loss) <= 1


def test_records_that_are_all_but_solved_are_not_refused() -> None:
    """Their losses are mere rounding, which another batch size changes altogether."""
    model = nn.Linear(3, 1)
    records = torch.randn(8, 3)

    def loss(network: nn.Module, batch: Batch) -> Tensor:
        rounding = torch.finfo(torch.float32).eps * batch[0].shape[0]
        return (network(batch[0]).flatten() - batch[1] + rounding).square()

    batch = (records, model(records).detach().flatten())
    assert torch.isfinite(fast(model, Flat(CLIP), batch, loss=loss)).all()
