"""Fixtures shared by the tests."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import register_random
from small_runs import CLASSES, FEATURES, RECORDS, prepared, small_model, small_recipe
from torch import nn

from tacit.data.batches import TensorRecords
from tacit.steps import Steps

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # workers fill the cores already


class TorchRandom:
    """torch's generator as hypothesis sets it back: what failed once fails again."""

    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


TORCH_RANDOM = TorchRandom()  # hypothesis keeps a weak reference
register_random(TORCH_RANDOM)


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    torch.manual_seed(20)


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
    return prepared(tmp_path / "run", records, small_recipe(), model)


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports and figures are tested elsewhere, and drawing takes most of the time."""

    def write(run: Path) -> Path:
        (run / "report.html").write_text("")
        return run / "report.html"

    monkeypatch.setattr("tacit.loop.write_report", write)
    monkeypatch.setattr("tacit.report.comparison.comparison_charts", lambda groups: [])
    monkeypatch.setattr("tacit.report.comparison.confusion_charts", lambda groups: [])
