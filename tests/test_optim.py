"""Schedules and averages, by their definitions."""

import math

import pytest
import torch
from torch import nn

from tacit.data.batches import TensorRecords
from tacit.evaluate import evaluate
from tacit.losses import cross_entropy
from tacit.optim import Pace, Schedule, WeightAverage, weights_swapped


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
