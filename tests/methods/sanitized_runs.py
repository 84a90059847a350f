"""A small network with a sanitization layer, and runs of its variants."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit.assemble import Facts, assemble
from tacit.config import Recipe
from tacit.data.batches import TensorRecords
from tacit.models import SanitizationLayer
from tacit.rundir import RunDir
from tacit.steps import Steps

RECORDS, FEATURES, CLASSES, WIDTH = 120, 6, 3, 8
OWN = FEATURES - 1
"""The feature that a single record has."""


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(
            nn.Linear(FEATURES, WIDTH), nn.ReLU(), SanitizationLayer(), nn.Linear(WIDTH, CLASSES)
        )


def dataset(own: float) -> TensorRecords:
    """Records among which only the first has a value in the last feature."""
    x = torch.randn(RECORDS, FEATURES, generator=torch.Generator().manual_seed(11))
    x[:, OWN] = 0.0
    x[0, OWN] = own
    return TensorRecords(x, x[:, :CLASSES].argmax(1))


def recipe(guarantee: str, seed: int = 1, **settings: Any) -> Recipe:
    method = {"name": "sanitization", "guarantee": guarantee}
    method |= {k: settings.pop(k) for k in list(settings) if k not in ("epochs", "noise")}
    return Recipe.parse(
        {
            "method": method,
            "privacy": {"noise": settings.get("noise", 1.0)},
            "training": {
                "epochs": settings.get("epochs", 2),
                "batch_size": 30,
                "learning_rate": 0.5,
            },
            "run": {"seed": seed},
        }
    )


def started(path: Path, chosen: Recipe, own: float = 0.0, *, repeatable: bool = True) -> Steps:
    run = RunDir.create(path)
    return assemble(network(), dataset(own), chosen, run, Facts(), repeatable=repeatable)
