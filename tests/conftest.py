"""Fixtures shared by the tests."""

import os
from pathlib import Path

import pytest
import torch
from small_runs import CLASSES, FEATURES, RECORDS, small_model, small_recipe
from torch import nn

from tacit.assemble import Facts, assemble
from tacit.data.batches import TensorRecords
from tacit.rundir import RunDir
from tacit.steps import Steps

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # workers fill the cores already


@pytest.fixture
def records() -> TensorRecords:
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(RECORDS, FEATURES, generator=generator)
    return TensorRecords(x, (x[:, :CLASSES]).argmax(1))


@pytest.fixture
def model() -> nn.Module:
    return small_model()


@pytest.fixture
def steps(tmp_path: Path, records: TensorRecords, model: nn.Module) -> Steps:
    run = RunDir.create(tmp_path / "run")
    return assemble(model, records, small_recipe(), run, Facts())
