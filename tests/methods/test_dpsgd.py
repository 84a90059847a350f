"""DP-SGD end to end: every ingredient that the proof names is really there.

Each test fails if the noise is scaled, a clip skipped, the sum divided by the realised batch,
batches shuffled, or an update made before it is paid for.
"""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from small_runs import FEATURES, RECORDS, Wide, flat, prepared, small_model, small_recipe
from torch import Tensor, nn

from tacit.config import Recipe
from tacit.data.batches import TensorRecords
from tacit.data.sampling import PoissonSampler, ShuffledSampler
from tacit.errors import NoProofError
from tacit.losses import cross_entropy
from tacit.methods.dpsgd import DpSgd
from tacit.noise.gaussian import PrivateGradient
from tacit.noise.source import RandomSource
from tacit.optim import PrivateOptimizer
from tacit.privacy import events
from tacit.privacy.plan import SampledSchedule
from tacit.privacy.relations import Relation
from tacit.steps import Steps

SOURCE = RandomSource.from_seed(0)
NOTHING: Any = None
"""Stands for the equipment where a method is refused before it looks at it."""
TINY = 1e-6
"""Noise far below the tolerances, as different sums never share theirs."""


def no_gradient(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return 0.0 * model(batch[0]).sum(1)


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize(("noise", "clip"), [(1.0, 1.0), (2.5, 0.1)])
def test_without_gradient_an_update_is_exactly_the_promised_noise(
    tmp_path: Path, records: TensorRecords, noise: float, clip: float, engine: str
) -> None:
    recipe = small_recipe(noise=noise, clip=clip, learning_rate=1.0, engine=engine)
    model = Wide()
    steps = prepared(tmp_path / "run", records, recipe, model)
    before = flat(model)
    steps.advance(no_gradient)
    moved = (flat(model) - before).double()
    expected = noise * clip / recipe.training.batch_size
    z = (float(moved.square().mean()) / expected**2 - 1) / math.sqrt(2 / len(moved))
    assert abs(z) < 5
    assert abs(float(moved.mean())) / expected * math.sqrt(len(moved)) < 5


def test_the_sum_is_divided_by_the_expected_batch_size_never_the_realised_one(
    tmp_path: Path, records: TensorRecords
) -> None:
    """With tiny noise the update is −rate · clipped sum / expected size, whatever was drawn."""
    recipe = small_recipe(noise=1e-4, learning_rate=1.0, clip=0.5)
    model = small_model()
    steps = prepared(tmp_path / "run", records, recipe, model)
    sizes = set()
    for _ in range(4):
        before = flat(model)
        batch = next(iter(steps))
        expected = 0
        for x, y in zip(*batch, strict=True):
            loss = cross_entropy(model, (x[None], y[None])).sum()
            gradient = torch.cat(
                [g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]
            )
            expected = expected + gradient * min(1.0, 0.5 / float(gradient.norm()))
        steps.step(cross_entropy)
        sizes.add(len(batch[0]))
        found = before - flat(model)
        torch.testing.assert_close(found, expected / 30, rtol=0, atol=2e-5)
    assert len(sizes) > 1


def test_samples_vary_in_size_and_repeat_records_between_steps(
    tmp_path: Path, records: TensorRecords
) -> None:
    steps = prepared(tmp_path / "run", records, small_recipe(epochs=8))
    drawn = []
    for batch in steps:
        drawn.append(batch[0])
        steps.step(cross_entropy)
    sizes = torch.tensor([len(x) for x in drawn], dtype=torch.float64)
    variance = RECORDS * 0.1 * 0.9
    assert 0.4 < float(sizes.var()) / variance < 2.0
    rows = [{tuple(row.tolist()) for row in x} for x in drawn]
    repeats = sum(len(a & b) for a, b in pairwise(rows))
    assert repeats > 100


def test_an_empty_sample_is_a_step_with_noise_and_a_charge(
    tmp_path: Path, records: TensorRecords
) -> None:
    recipe = small_recipe(batch_size=1, epochs=0.04, noise=1.0)
    steps = prepared(tmp_path / "run", records, recipe)
    empty = 0
    while steps.remaining:
        before = flat(steps.state.model)
        batch = next(iter(steps))
        steps.step(cross_entropy)
        empty += not batch
        assert not torch.equal(before, flat(steps.state.model))
    assert empty > 0
    assert events.leaves(steps.spent()).total() == 12


def test_every_update_is_on_disk_before_it_is_applied(
    tmp_path: Path, records: TensorRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = prepared(tmp_path / "run", records, small_recipe())
    ledger = tmp_path / "run" / "ledger.jsonl"
    applied = PrivateOptimizer.apply
    seen = []

    def apply(self: PrivateOptimizer, gradient: PrivateGradient, step: int) -> None:
        lines = [json.loads(line) for line in ledger.read_bytes().splitlines()]
        seen.append([line["step"] for line in lines if line["kind"] == "charge"])
        applied(self, gradient, step)

    monkeypatch.setattr(PrivateOptimizer, "apply", apply)
    for _ in range(3):
        steps.advance(cross_entropy)
    assert seen == [[0], [0, 1], [0, 1, 2]]


def test_the_charge_is_the_event_that_happens(steps: Steps) -> None:
    steps.advance(cross_entropy)
    body = steps.ledger.entries[-1].body
    assert body["event"] == {
        "poisson": events.sampling_probability(RECORDS, 30),
        "of": {"gaussian": 1.0},
    }


def test_shuffled_batches_are_refused() -> None:
    with pytest.raises(NoProofError, match="Poisson"):
        DpSgd(
            SampledSchedule(RECORDS, 30, 1, 1.0),
            cast(Any, ShuffledSampler(RECORDS, 30, SOURCE)),
            NOTHING,
            Relation.ADD_OR_REMOVE_ONE,
        )


def test_another_rate_than_the_schedules_is_refused() -> None:
    with pytest.raises(NoProofError, match="probability"):
        DpSgd(
            SampledSchedule(RECORDS, 30, 1, 1.0),
            PoissonSampler(RECORDS, 60, SOURCE),
            NOTHING,
            Relation.ADD_OR_REMOVE_ONE,
        )


def test_the_optimizer_takes_nothing_but_private_gradients(steps: Steps) -> None:
    bare: Any = torch.zeros(3)
    with pytest.raises(NoProofError, match="PrivateGradient"):
        steps.state.optimizer.apply(bare, 0)


@pytest.mark.parametrize("engine", ["fast", "reference", "loop"])
@pytest.mark.parametrize("micro", [1, 7, 300])
def test_micro_batches_change_nothing(
    tmp_path: Path, records: TensorRecords, micro: int, engine: str
) -> None:
    whole, pieces = (
        prepared(
            tmp_path / name, records, small_recipe(micro_batch=size, engine=engine, noise=TINY)
        )
        for name, size in (("whole", 300), ("pieces", micro))
    )
    for _ in range(5):
        whole.advance(cross_entropy)
        pieces.advance(cross_entropy)
    torch.testing.assert_close(flat(whole.state.model), flat(pieces.state.model), atol=2e-6, rtol=0)
    assert len(whole.ledger.entries) == len(pieces.ledger.entries) == 6


@pytest.mark.parametrize("engine", ["fast", "loop"])
def test_engines_agree(tmp_path: Path, records: TensorRecords, engine: str) -> None:
    first = prepared(
        tmp_path / "a", records, small_recipe(engine="reference", clip=0.1, noise=TINY)
    )
    second = prepared(tmp_path / "b", records, small_recipe(engine=engine, clip=0.1, noise=TINY))
    for _ in range(5):
        first.advance(cross_entropy)
        second.advance(cross_entropy)
    torch.testing.assert_close(flat(first.state.model), flat(second.state.model), atol=2e-6, rtol=0)


def test_one_record_moves_the_weights_by_no_more_than_its_bound(tmp_path: Path) -> None:
    """The same samples, one record made extreme: the update moves by at most 2C/B."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(RECORDS, FEATURES, generator=generator), torch.zeros(RECORDS).long()
    wild = x.clone()
    wild[17] = 1e4
    weights = []
    for name, features in (("a", x), ("b", wild)):
        recipe = small_recipe(batch_size=RECORDS, epochs=1, learning_rate=1.0, clip=0.3, noise=TINY)
        steps = prepared(tmp_path / name, TensorRecords(features, y), recipe)
        steps.advance(cross_entropy)
        weights.append(flat(steps.state.model))
    assert float((weights[0] - weights[1]).norm()) <= 2 * 0.3 / RECORDS * (1 + 1e-3)


def test_plain_sgd_makes_no_promise(tmp_path: Path, records: TensorRecords) -> None:
    recipe = Recipe().with_settings(method="plain", epochs=2, batch_size=30, seed=1)
    steps = prepared(tmp_path / "run", records, recipe)
    steps.advance(cross_entropy)
    assert steps.ledger.entries[-1].body["event"] == {"non-private": True}
    assert steps.method.promise.proof is None
