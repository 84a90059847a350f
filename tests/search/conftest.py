"""Records, a recipe, and the runs that a search makes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from private_runs import HELD, RECORDS

from tacit.config import Recipe
from tacit.sweep import Training


@pytest.fixture(autouse=True)
def quickly(without_figures: None) -> None:
    """No search draws anything."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(RECORDS, 5, generator=generator)
    path = tmp_path_factory.mktemp("data") / "records.npz"
    np.savez(path, x=x.numpy(), y=(x[:, 0] > 0).long().numpy())
    return path


@pytest.fixture
def recipe(data: Path) -> Recipe:
    """Without sampling, so that planning takes no time."""
    return Recipe.parse(
        {
            "data": {"name": str(data), "holdout": HELD, "options": {"classes": 2}},
            "model": {"name": "linear"},
            "privacy": {"epsilon": 3.0},
            "training": {"epochs": 3, "batch_size": RECORDS - HELD},
            "run": {"seed": 2, "evaluate_every": 100},
        }
    )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Training]]:
    """The runs that a search makes, in their order."""
    seen: list[Training] = []
    original = Training.do

    def do(self: Training, *rest: Any) -> None:
        seen.append(self)
        original(self, *rest)

    monkeypatch.setattr(Training, "do", do)
    yield seen
