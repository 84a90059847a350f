"""Small data and runs shared by the tests."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tacit.assemble import Facts, assemble
from tacit.config import Recipe
from tacit.data.batches import TensorRecords
from tacit.rundir import RunDir
from tacit.steps import Steps

RECORDS, FEATURES, CLASSES = 300, 6, 3


@pytest.fixture
def records() -> TensorRecords:
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(RECORDS, FEATURES, generator=generator)
    return TensorRecords(x, (x[:, :CLASSES]).argmax(1))


def small_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def small_recipe(**settings: Any) -> Recipe:
    defaults = {"epochs": 2, "batch_size": 30, "noise": 1.0, "epsilon": None, "seed": 1}
    return Recipe().with_settings(**{**defaults, **settings})


@pytest.fixture
def model() -> nn.Module:
    return small_model()


@pytest.fixture
def steps(tmp_path: Path, records: TensorRecords, model: nn.Module) -> Steps:
    run = RunDir.create(tmp_path / "run")
    return assemble(model, records, small_recipe(), run, Facts())
