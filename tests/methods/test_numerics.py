"""What runs say about their sums: proven, idealised, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import tacit
from tacit.assemble import described
from tacit.clipping.contract import Batch
from tacit.clipping.exact.engine import ExactEngine
from tacit.config import Recipe, load
from tacit.data.batches import TensorRecords, as_records
from tacit.data.sampling import PoissonSampler
from tacit.errors import ArgumentError
from tacit.methods.build import build, numerics_of
from tacit.methods.loss_test import NoisyLossChange
from tacit.methods.parts import Parts
from tacit.models.networks import MODELS
from tacit.noise.source import RandomSource
from tacit.noise.sums import SumLog
from tacit.updates import private_optimizer

RECORDS, FEATURES, CLASSES = 120, 5, 3
BEST_RECIPES = ("mnist", "fashion-mnist", "cifar-10", "imdb")


def records(features: int = FEATURES) -> TensorRecords:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, features, generator=generator)
    return TensorRecords(x, torch.randint(0, CLASSES, (RECORDS,), generator=generator))


def small(**settings: Any) -> Recipe:
    given = {"noise": 2.0, "epochs": 2, "batch_size": 30, **settings}
    return Recipe().with_settings(**given)


def linear() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.LayerNorm(8), nn.Linear(8, CLASSES))


def convolved() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, FEATURES)),
        nn.Conv1d(1, 2, 3),
        nn.MaxPool1d(2),
        nn.Flatten(),
        nn.Linear(2, CLASSES),
    )


def learned_slopes() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.PReLU(), nn.Linear(8, CLASSES))


class Own(Dataset[tuple[Tensor, Tensor]]):
    """The records of a user's own Dataset."""

    def __init__(self) -> None:
        self._given = records().batch(torch.arange(RECORDS))

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._given[0][index], self._given[1][index]


@pytest.mark.parametrize("recipe", BEST_RECIPES)
def test_sums_of_the_best_recipes_are_proven_by_default(recipe: str) -> None:
    chosen = load(recipe, {"training.batch_size": "60", "training.epochs": "2"})
    shape, tokens = ((24,), 50) if recipe == "imdb" else ((3, 4, 4), 0)
    x = torch.randint(0, 50, (RECORDS, 24)) if tokens else torch.randn(RECORDS, *shape)
    given = TensorRecords(x, torch.randint(0, CLASSES, (RECORDS,)))
    model = MODELS[chosen.model.name](shape, CLASSES, tokens)
    found = numerics_of(described(model, given, chosen))
    assert found["sums"] == "proven"
    assert found["layers"] == (["embedding"] if tokens else ["1"])


@pytest.mark.parametrize(
    ("model", "settings", "sums", "reason"),
    [
        (linear, {}, "proven", ""),
        (linear, {"method": "dpsgd", "clipping": "automatic"}, "proven", ""),
        (chain, {}, "idealised", "privacy.numerics"),
        (chain, {"numerics": "proven"}, "proven", ""),
        (normalised, {}, "idealised", "privacy.numerics"),
        (normalised, {"numerics": "proven"}, "proven", ""),
        (convolved, {}, "idealised", "privacy.numerics"),
        (convolved, {"numerics": "proven"}, "proven", ""),
        (learned_slopes, {}, "idealised", "1: PReLU"),
        (linear, {"engine": "reference"}, "idealised", "run.engine"),
        (linear, {"method": "batch-clipping", "mini_sets": 10}, "idealised", "mini-sets"),
        (linear, {"method": "dpsur", "validation_batch_size": 30}, "proven", ""),
        (linear, {"method": "dpftrl"}, "proven", ""),
    ],
)
def test_runs_say_whether_their_sums_are_proven(
    model: Any, settings: dict[str, Any], sums: str, reason: str
) -> None:
    found = numerics_of(described(model(), records(), small(**settings)))
    assert found["sums"] == sums
    assert reason in found.get("reason", "")


@pytest.mark.parametrize(
    ("model", "settings", "reason"),
    [
        (learned_slopes, {}, "1: PReLU is not among"),
        (linear, {"engine": "loop"}, "run.engine is 'loop'"),
        (linear, {"method": "batch-clipping", "mini_sets": 10}, "mini-sets"),
    ],
)
def test_proven_refuses_what_is_not_covered(
    model: Any, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ArgumentError, match=f"numerics is 'proven'.*{reason}.*'best'"):
        described(model(), records(), small(numerics="proven", **settings))


def test_an_unknown_value_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"privacy.numerics is 'exact'.*'best' or 'proven'"):
        small(numerics="exact")


def test_losses_loops_and_datasets_of_ones_own_are_not_covered(tmp_path: Path) -> None:
    given = small(numerics="proven")

    def own_loss(model: nn.Module, batch: Batch) -> Tensor:
        return tacit.cross_entropy(model, batch)

    with pytest.raises(ArgumentError, match=r"loss is a function of your own"):
        tacit.fit(linear(), records(), recipe=given, loss=own_loss, out=tmp_path / "loss")
    with pytest.raises(ArgumentError, match=r"loop of your own; use tacit\.fit"):
        tacit.PrivateSteps(linear(), records(), recipe=given, out=tmp_path / "loop")
    with pytest.raises(ArgumentError, match=r"Dataset of your own"):
        described(linear(), as_records(Own()), given)


@pytest.mark.parametrize(("model", "sums"), [(linear, "proven"), (normalised, "idealised")])
def test_ledger_and_first_lines_of_the_certificate_say_it(
    model: Any, sums: str, tmp_path: Path
) -> None:
    tacit.fit(model(), records(), test=records(), recipe=small(), out=tmp_path / "run")
    first = (tmp_path / "run" / "ledger.jsonl").read_text("utf-8").splitlines()[0]
    assert f'"sums":"{sums}"' in first.replace(" ", "")
    text = (tmp_path / "run" / "certificate.txt").read_text("utf-8")
    head = text.split("claimed ε")[0]
    assert f"Sums {sums}: " in head
    assert ("public slot" in head.replace("\n", " ")) == (sums == "proven")
    issued = json.loads((tmp_path / "run" / "certificate.json").read_text("utf-8"))
    assert issued["numerics"]["sums"] == sums


def test_a_run_takes_its_sums_from_the_engine_that_is_promised() -> None:
    given, model = small(), linear()
    memory: dict[str, Tensor] = {}
    own = private_optimizer(given, model, 8, memory, None)
    source = RandomSource.from_seed(0)
    parts = Parts(given, model, records(), own, source, memory, SumLog())
    method = build(parts)
    assert isinstance(method._equipment.engine, ExactEngine)  # type: ignore[attr-defined]


def test_a_sum_of_losses_moves_by_a_clipped_change_exactly() -> None:
    """The test of a candidate adds changes up on a grid too, whatever is added first."""
    sampler = PoissonSampler(RECORDS, 60, RandomSource.from_seed(1))
    losses = NoisyLossChange(linear(), sampler, None, sampler.source, 0.3)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(2)
    changes = 0.3 * torch.rand(RECORDS, dtype=torch.float64, generator=generator)
    whole = losses._exact_sum(changes)
    assert torch.equal(whole, losses._exact_sum(changes.flip(0)))
    for r in range(0, RECORDS, 7):
        rest = losses._exact_sum(torch.cat([changes[:r], changes[r + 1 :]]))
        alone = losses._exact_sum(changes[r : r + 1])
        assert whole.item() - rest.item() == alone.item()
        assert abs(alone.item()) <= min(0.3, changes[r].item())
