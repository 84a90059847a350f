"""Schedules, averages and updates, by their definitions."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit.clipping.contract import Layout
from tacit.data.batches import TensorRecords
from tacit.evaluate import evaluate
from tacit.losses import cross_entropy
from tacit.noise.gaussian import PrivateGradient
from tacit.optim import Pace, PrivateOptimizer, Schedule, WeightAverage, weights_swapped
from tacit.state import TrainingState


def test_schedules_start_full_and_end_as_they_say() -> None:
    for schedule, end in ((Schedule.CONSTANT, 1.0), (Schedule.LINEAR, 0.01), (Schedule.COSINE, 0)):
        pace = Pace(2.0, 100, schedule)
        assert pace.at(0) == 2.0
        assert pace.at(99) == pytest.approx(2.0 * end, abs=1e-3)
    assert Pace(1.0, 100, Schedule.COSINE).at(50) == pytest.approx(0.5)


def test_warmup_rises_then_the_schedule_takes_over() -> None:
    pace = Pace(1.0, 100, Schedule.CONSTANT, warmup=0.1)
    rates = [pace.at(step) for step in range(20)]
    assert rates[:10] == sorted(rates[:10]) and 0 < rates[0] < 0.2
    assert rates[10:] == [1.0] * 10


def test_the_average_forgets_the_start_and_converges() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 5.0)
    average = WeightAverage(model, 0.9)
    nn.init.constant_(model.weight, 1.0)
    average.update(model, 0)
    assert float(average.values["weight"]) == pytest.approx(1.0 + 4.0 * 0.1)
    for step in range(1, 100):
        average.update(model, step)
    assert float(average.values["weight"]) == pytest.approx(1.0, abs=1e-3)


def test_swapped_weights_come_back_even_after_an_error() -> None:
    model = nn.Linear(2, 2)
    own = model.weight.detach().clone()
    other = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    with pytest.raises(ZeroDivisionError), weights_swapped(model, other):
        assert float(model.weight.detach().abs().max()) == 0.0
        _ = 1 / 0
    assert torch.equal(model.weight, own)


def test_evaluation_counts_what_a_person_would() -> None:
    model = nn.Linear(2, 2, bias=False)
    model.weight.data = torch.eye(2)
    x = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
    found = evaluate(model, TensorRecords(x, torch.tensor([0, 1, 1])), cross_entropy)
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.confusion == [[1, 0], [1, 1]]
    right, wrong = math.log1p(math.exp(-2)), math.log1p(math.exp(2))
    assert found.loss == pytest.approx((2 * right + wrong) / 3, rel=1e-6)


def _convolution_moved(
    kind: Callable[..., torch.optim.Optimizer], fused: bool, restored: bool
) -> Tensor:
    """A weight with its channels last after five updates, as one run or gone on with after two."""
    torch.manual_seed(0)
    model = nn.Conv2d(4, 8, 3, bias=False).to(memory_format=torch.channels_last)
    layout = Layout.of(model, lambda names: [0] * len(names))

    def fresh() -> PrivateOptimizer:
        settings: dict[str, Any] = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        return PrivateOptimizer(model, kind(model.parameters(), lr=0.1, fused=fused, **settings))

    private = fresh()
    for step in range(5):
        if restored and step == 2:
            kept = TrainingState(model, private).snapshot()
            for name, value in kept.tensors.items():
                kept.tensors[name] = value.contiguous()  # as they come back from a file
            private = fresh()
            TrainingState(model, private).restore(kept)
        private.apply(PrivateGradient(torch.randn(layout.size), layout, scales=(1.0,)), step)
    return model.weight.detach().clone()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_a_fused_optimizer_moves_each_weight_by_its_own_gradient(
    kind: Callable[..., torch.optim.Optimizer],
) -> None:
    """torch's fused updates on a CPU do not look how gradients and moments lie in memory."""
    expected = _convolution_moved(kind, fused=False, restored=False)
    for restored in (False, True):
        moved = _convolution_moved(kind, fused=True, restored=restored)
        torch.testing.assert_close(moved, expected, rtol=1e-5, atol=1e-6)
