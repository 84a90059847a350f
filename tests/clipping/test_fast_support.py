"""What the tests of the fast engine share: rules, a loss, and the slowest possible oracle."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tacit import native
from tacit.clipping import fast as fast_module
from tacit.clipping.contract import Batch, ClippingRule, Layout
from tacit.clipping.fast import FastEngine
from tacit.clipping.rules import Automatic, Flat

CLIP = 0.1
Loss = Callable[[nn.Module, Batch], Tensor]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """On tiny tensors a second thread only waits, on a busy machine for a long time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="module", params=[0, 3], ids=["torch", "native"])
def both_paths(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything in pure torch, and again with the compiled kernels."""
    if request.param and not native.available():
        pytest.skip("the compiled kernels are not built")
    with native.limited_to(request.param):
        yield


@dataclass(frozen=True)
class PerParameter:
    """Every parameter its own group with its own bound: no norm can hide behind another."""

    parameters: int

    @property
    def bounds(self) -> tuple[float, ...]:
        return tuple(CLIP / (1 + i) for i in range(self.parameters))

    @property
    def shares(self) -> tuple[float, ...]:
        return (1 / self.parameters,) * self.parameters

    def grouping(self, names: Sequence[str]) -> Sequence[int]:
        return range(len(names))

    def factors(self, norms: Tensor) -> Tensor:
        return (torch.tensor(self.bounds, dtype=norms.dtype) / norms.clamp_min(1e-30)).clamp_max(1)


@dataclass(frozen=True)
class Multiplied(Flat):
    """No clipping below twice the bound, so that both sides of the threshold are met."""

    def grouping(self, names: Sequence[str]) -> Sequence[int]:
        return [i % 2 for i in range(len(names))]

    @property
    def bounds(self) -> tuple[float, ...]:
        return (self.clip, 20 * self.clip)

    @property
    def shares(self) -> tuple[float, ...]:
        return (0.5, 0.5)

    def factors(self, norms: Tensor) -> Tensor:
        return (torch.tensor(self.bounds, dtype=norms.dtype) / norms.clamp_min(1e-30)).clamp_max(1)


def rules_for(model: nn.Module) -> list[ClippingRule]:
    trainable = sum(p.requires_grad for p in model.parameters())
    return [Flat(CLIP), Automatic(CLIP), PerParameter(trainable), Multiplied(CLIP)]


def squared_loss(model: nn.Module, batch: Batch) -> Tensor:
    """A loss with a different gradient for every record and output."""
    outputs = model(*batch[:-1]).flatten(1)
    slopes = torch.linspace(1, 2, outputs.shape[1], dtype=outputs.dtype)
    return ((outputs * slopes).sin().sum(1) - batch[-1]).square()


def batch_of(*inputs: Tensor, dtype: torch.dtype = torch.float64) -> Batch:
    return (*inputs, torch.linspace(-1, 1, inputs[0].shape[0], dtype=dtype))


def by_loop(
    model: nn.Module, rule: ClippingRule, batch: Batch, views: int = 1, loss: Loss = squared_loss
) -> Tensor:
    """One record after the other through ordinary autograd."""
    layout = Layout.of(model, rule.grouping)
    named = dict(model.named_parameters())
    parameters = [named[name] for name in layout.names]
    total = torch.zeros(layout.size, dtype=parameters[0].dtype)
    for start in range(0, batch[0].shape[0], views):
        one = tuple(t[start : start + views] for t in batch)
        found = torch.autograd.grad(loss(model, one).mean(), parameters, allow_unused=True)
        gradients = [
            torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)
        ]
        squares = torch.zeros(1, len(rule.bounds), dtype=total.dtype)
        for gradient, group in zip(gradients, layout.groups, strict=True):
            squares[0, group] += gradient.square().sum()
        if not bool(squares.isfinite().all()):
            continue
        factors = rule.factors(squares.sqrt())
        scaled = [
            (g * factors[0, h]).flatten() for g, h in zip(gradients, layout.groups, strict=True)
        ]
        total += torch.cat(scaled)
    return total


def fast(
    model: nn.Module,
    rule: ClippingRule,
    batch: Batch,
    views: int = 1,
    loss: Loss = squared_loss,
    deterministic: bool = False,
) -> Tensor:
    return (
        FastEngine(model, rule, deterministic=deterministic)
        .clipped_sum(loss, [batch], views)
        .vector
    )


def largest_error(
    model: nn.Module,
    *inputs: Tensor,
    views: int = 1,
    loss: Loss = squared_loss,
    rule: int | None = None,
) -> float:
    """The largest error in units of what is allowed, against a loop of single records.

    Both ways of choosing algorithms, one read off the graph where it can be and one intercepted,
    at the first step and after it, in both precisions.

    In single precision the margin is 1e-5 of the bound, or a few times what single precision
    costs where that is more: for a loop over records, or for records and weights themselves.
    """
    largest = 0.0
    for index in range(4) if rule is None else [rule]:
        exact = torch.empty(0, dtype=torch.float64)
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            cast = copy.deepcopy(model).to(dtype)
            each = rules_for(cast)[index]
            floats = (t.to(dtype) if t.is_floating_point() else t for t in inputs)
            batch = batch_of(*floats, dtype=dtype)
            expected = by_loop(cast, each, batch, views, loss)
            margin = tolerance * max(each.bounds)
            if dtype == torch.float64:
                exact = expected
            else:
                margin = max(margin, 4 * float((expected - exact).abs().max()))
            for deterministic, readers in ((False, fast_module.READERS), (True, {})):
                engine = FastEngine(cast, each, deterministic=deterministic)
                for _ in range(2):
                    with patch.object(fast_module, "READERS", readers):
                        found = engine.clipped_sum(loss, [batch], views).vector
                    wrong = (found - expected).abs().max().nan_to_num(torch.inf, torch.inf)
                    if float(wrong) > margin and dtype == torch.float32:
                        rounding = cost_of_rounding(cast, each, batch, views, loss, exact)
                        margin = max(margin, 4 * rounding)
                    largest = max(largest, float(wrong) / margin)
    return largest


def assert_agrees(
    engine: FastEngine, model: nn.Module, batch: Batch, views: int = 1, loss: Loss = squared_loss
) -> None:
    """One step of an engine is what a loop over records gives, in double precision."""
    found = engine.clipped_sum(loss, [batch], views).vector
    expected = by_loop(model, engine.rule, batch, views, loss)
    largest = max(engine.rule.bounds)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * largest)


def cost_of_rounding(
    model: nn.Module, rule: ClippingRule, batch: Batch, views: int, loss: Loss, exact: Tensor
) -> float:
    """How far the exact result moves when records and weights do by a rounding error.

    Much where a record's gradient all but vanishes and is longer than its bound all the same.
    """
    largest = 0.0
    for _ in range(8):
        moved = copy.deepcopy(model).double()
        with torch.no_grad():
            for weights in moved.parameters():
                weights.copy_(rounded(weights))
        records = tuple(rounded(t.double()) if t.is_floating_point() else t for t in batch)
        changed = by_loop(moved, rule, records, views, loss) - exact
        largest = max(largest, float(changed.abs().max()))
    return largest


def rounded(exact: Tensor) -> Tensor:
    """Off by what single precision may be off, up or down."""
    signs = torch.randint(0, 2, exact.shape) * 2 - 1
    return exact * (1 + signs * torch.finfo(torch.float32).eps / 2)


small = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.function_scoped_fixture,
    ],
)
sizes = st.integers(1, 4)
booleans = st.booleans()
some_views = st.sampled_from([1, 3])
some_rule = st.integers(0, 3)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class Wrapped(nn.Module):
    """A layer between two others, so that gradients flow into and out of it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.scale = nn.Parameter(torch.tensor([1.5]))

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        if x.is_floating_point():
            x = x + self.scale * x.cos()
        output = self.layer(x, *others)
        return output[0] if isinstance(output, tuple) else output


def error_within(layer: nn.Module, *inputs: Tensor, views: int, rule: int) -> float:
    """The largest error where the layer stands between two others."""
    return largest_error(Wrapped(layer), *inputs, views=views, rule=rule)


def rows(views: int) -> int:
    return 2 * views if views > 1 else 3
