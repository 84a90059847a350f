"""Small models, recipes and runs shared by the tests."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit.assemble import Facts, assemble
from tacit.config import Recipe
from tacit.data.batches import TensorRecords
from tacit.rundir import RunDir
from tacit.steps import Steps

RECORDS, FEATURES, CLASSES = 300, 6, 3
NEVER, ALWAYS = -40.0, 4000.0
"""Thresholds of selective update that reject and accept everything."""
DECAYING: dict[str, Any] = {
    "method": "dpsgd-br",
    "noise": 4.0,
    "epochs": 30,
    "validation_batch_size": 6,
    "validation_noise": 4.0,
    "feedback_batch_size": 60,
    "fast": 0.8,
    "slow": 0.9,
    "beta": 0.5,
}
"""Selective update whose settings decay fast."""
_DIGITS = """
title = "Small"
[data]
name = "digits"
[model]
name = "linear"
[privacy]
noise = 3.0
[training]
epochs = {epochs}
batch_size = 700
[run]
evaluate_every = 1000
"""


def small_model() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


class Wide(nn.Module):
    """Many weights, so that one step shows the scale of its noise."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 20_000)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out


def flat(model: nn.Module) -> Tensor:
    """All weights, one after the other."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def small_recipe(**settings: Any) -> Recipe:
    defaults = {"epochs": 2, "batch_size": 30, "noise": 1.0, "epsilon": None, "seed": 1}
    return Recipe().with_settings(**{**defaults, **settings})


def written_recipe(
    folder: Path, name: str = "small", epochs: float = 2.0, method: str = "dpsgd"
) -> str:
    """A file with a recipe for digits; five steps of it take no time."""
    path = folder / f"{name}.toml"
    path.write_text(_DIGITS.format(epochs=epochs) + f'[method]\nname = "{method}"\n')
    return str(path)


def prepared(
    path: Path, records: TensorRecords, recipe: Recipe, model: nn.Module | None = None, **more: Any
) -> Steps:
    """The steps of a new run, none of them taken."""
    return assemble(model or small_model(), records, recipe, RunDir.create(path), Facts(), **more)


def selective(path: Path, records: TensorRecords, public: Any = None, **settings: Any) -> Steps:
    """The steps of selective update, DPSUR unless another method is named."""
    chosen: dict[str, Any] = {"method": "dpsur", "validation_batch_size": 60, **settings}
    return prepared(path, records, small_recipe(**chosen), public=public)


def save(steps: Steps, run: RunDir) -> None:
    """A checkpoint as the loop writes it."""
    steps.state.history["ledger_head"] = steps.ledger.head
    run.save_checkpoint(steps.state.snapshot())
