"""DP-FTRL end to end: order, noise, charge and resumption as its proofs need them."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import FEATURES, RECORDS, flat, prepared, small_model, small_recipe
from torch import Tensor, nn

import tacit
from tacit.config import Recipe
from tacit.data.batches import Gatherer, TensorRecords
from tacit.data.sampling import FixedOrderSampler, GroupedPoissonSampler, PoissonSampler
from tacit.errors import NoProofError, RunError
from tacit.losses import cross_entropy
from tacit.methods.clipped import Equipment
from tacit.methods.dpftrl import AmplifiedBanded, DpFtrl
from tacit.noise.source import RandomSource
from tacit.privacy.amplified import GroupedSchedule
from tacit.privacy.factors import banded_variances, square_root_coefficients, tree_variances
from tacit.privacy.fixed_order import Correlation, FixedOrderSchedule

SOURCE = RandomSource.from_seed(4)


def recipe_for(mechanism: str, **settings: Any) -> Recipe:
    return small_recipe(method="dpftrl", mechanism=mechanism, **settings)


def no_gradient(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return 0.0 * model(batch[0]).sum(1)


def wide() -> nn.Module:
    return nn.Linear(FEATURES, 6_000)


@pytest.mark.parametrize("mechanism", ["tree", "banded", "amplified"])
def test_without_gradient_the_weights_carry_exactly_the_noise_of_the_sums(
    tmp_path: Path, records: TensorRecords, mechanism: str
) -> None:
    bands = {"tree": 0, "banded": 6, "amplified": 4}[mechanism]
    recipe = recipe_for(mechanism, noise=3.0, clip=0.5, learning_rate=1.0, bands=bands)
    model = wide()
    steps = prepared(tmp_path / "run", records, recipe, model, loss=no_gradient, repeatable=False)
    start, moved = flat(model).double(), []
    for _ in range(20):
        steps.advance(no_gradient)
        moved.append((flat(model).double() - start).square().mean())
    unit = 3.0 * 0.5 / recipe.training.batch_size
    if mechanism == "tree":
        expected = tree_variances([20], reduced=True)
    else:
        c = square_root_coefficients(bands)
        expected = banded_variances(c, 20) * (float(c @ c) if mechanism == "amplified" else 1.0)
    ratio = torch.stack(moved).numpy() / (expected * unit**2)
    assert np.abs(ratio - 1).max() < 5 * math.sqrt(2 / len(start))


def test_the_update_is_the_noised_sum_of_all_gradients_over_lambda(
    tmp_path: Path, records: TensorRecords
) -> None:
    """With next to no noise, θ_t = θ_0 − rate·Σ clipped sums / batch size."""
    recipe = recipe_for("tree", noise=1e-3, clip=0.5, learning_rate=0.2, epochs=1)
    model = small_model()
    steps = prepared(tmp_path / "run", records, recipe, model)
    expected = flat(model).double()
    sampler = FixedOrderSampler(RECORDS, 30, RandomSource.from_seed(1))
    for step in range(10):
        for index in sampler.draw(step):
            x, y = records.batch(torch.tensor([index]))
            gradients = torch.autograd.grad(cross_entropy(model, (x, y)).sum(), model.parameters())
            whole = torch.cat([g.flatten() for g in gradients]).double()
            expected = expected - 0.2 / 30 * whole * min(1.0, 0.5 / float(whole.norm()))
        steps.advance(cross_entropy)
        assert torch.allclose(flat(model).double(), expected, atol=5e-5)


def test_every_record_is_used_once_an_epoch_at_the_same_place() -> None:
    sampler = FixedOrderSampler(95, 10, SOURCE)
    first = [sampler.draw(step) for step in range(10)]
    second = [sampler.draw(step) for step in range(10, 20)]
    assert sorted(np.concatenate(first)) == list(range(95)) and len(first[-1]) == 5
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    mixed = FixedOrderSampler(95, 10, SOURCE, reshuffled=True)
    third = [mixed.draw(step) for step in range(10, 20)]
    assert sorted(np.concatenate(third)) == list(range(95))
    assert not all(np.array_equal(a, b) for a, b in zip(first, third, strict=True))


def test_groups_take_turns_at_the_stated_rate() -> None:
    sampler = GroupedPoissonSampler(4000, 100, 8, SOURCE)
    assert sampler.probability == pytest.approx(0.2, abs=1e-9)
    taken = [sampler.draw(step) for step in range(80)]
    assert all(set(indices % 8) <= {step % 8} for step, indices in enumerate(taken))
    total = sum(map(len, taken))
    assert abs(total - 8000) < 5 * math.sqrt(80 * 500 * 0.2 * 0.8)


@pytest.mark.parametrize("mechanism", ["tree", "banded", "amplified"])
def test_the_ledger_pays_for_every_step_and_keeps_to_the_budget(
    tmp_path: Path, records: TensorRecords, mechanism: str
) -> None:
    result = tacit.fit(
        small_model(),
        records,
        recipe=recipe_for(mechanism, noise=None, epsilon=2.0, epochs=3),
        out=tmp_path / "run",
    )
    certificate = result.certificate
    assert certificate["charges"] == certificate["steps"] == 30
    assert 1.98 < certificate["proven"]["zero-out"] <= 2.0
    assert "add-or-remove-one" not in certificate["proven"]
    assert certificate["proven"]["replace-one"] > certificate["proven"]["zero-out"]
    assert (certificate["claimed"] is not None) == (mechanism == "tree")
    assert mechanism == "tree" or certificate["proof"] == "docs/proofs/banded.md"


def bound(schedule: FixedOrderSchedule, sampler: Any) -> DpFtrl:
    engine: Any = type("Engine", (), {"layout": type("Layout", (), {"size": 3})})()
    gatherer: Any = Gatherer(TensorRecords(torch.zeros(90, 1), torch.zeros(90)), 10, 1, ())
    thresholds: Any = None
    equipment = Equipment(engine, gatherer, thresholds, SOURCE)
    return DpFtrl(schedule, sampler, equipment, {}, tacit.Relation.ZERO_OUT)


def test_batches_that_the_proof_does_not_cover_are_refused() -> None:
    schedule = FixedOrderSchedule(90, 10, 18, 1.0)
    with pytest.raises(NoProofError, match="order fixed in advance"):
        bound(schedule, PoissonSampler(90, 10, SOURCE))
    with pytest.raises(NoProofError, match="reshuffled between epochs"):
        bound(schedule, FixedOrderSampler(90, 10, SOURCE, reshuffled=True))
    with pytest.raises(NoProofError, match="the schedule 9"):
        bound(schedule, FixedOrderSampler(90, 5, SOURCE))
    covered = FixedOrderSchedule(90, 10, 18, 1.0, Correlation(order="reshuffled"))
    made = bound(covered, FixedOrderSampler(90, 10, SOURCE, reshuffled=True))
    assert "worst order" in made.promise.sampling


def test_groups_must_be_as_many_as_bands() -> None:
    equipment: Any = None
    with pytest.raises(NoProofError, match="3 groups"):
        AmplifiedBanded(
            GroupedSchedule(90, 10, 18, 1.0, 2),
            GroupedPoissonSampler(90, 10, 3, SOURCE),
            equipment,
            {},
            tacit.Relation.ZERO_OUT,
        )


def test_a_run_that_would_draw_other_noise_is_not_continued_and_not_lost(
    tmp_path: Path, records: TensorRecords
) -> None:
    recipe, out = recipe_for("tree"), tmp_path / "run"
    steps = prepared(out, records, recipe, small_model())
    steps.advance(cross_entropy)
    steps.ledger.close()
    key = (out / "private" / "key.json").read_bytes()
    changed = TensorRecords(records.features + 1e-3, records.labels)
    del steps
    with pytest.raises(RunError, match="bit for bit"):
        tacit.fit(small_model(), changed, recipe=recipe, out=out, resume=True)
    assert (out / "private" / "key.json").read_bytes() == key
    assert tacit.fit(small_model(), records, recipe=recipe, out=out, resume=True).epsilon > 0


class Scaled(nn.Module):
    """A model whose printed form hides what it computes."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.linear = small_model()
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.linear(x) * self.gain
        return scores


@pytest.mark.parametrize("mechanism", ["tree", "banded", "amplified"])
def test_noise_of_a_lost_step_is_not_given_to_another_sum(
    tmp_path: Path, records: TensorRecords, mechanism: str
) -> None:
    recipe, out = recipe_for(mechanism, bands=0 if mechanism == "tree" else 3), tmp_path / "run"
    steps = prepared(out, records, recipe, Scaled(1.0))
    steps.advance(cross_entropy)
    steps.ledger.close()
    del steps
    with pytest.raises(RunError, match="bit for bit"):
        tacit.fit(Scaled(0.0), records, recipe=recipe, out=out, resume=True)
    assert tacit.fit(Scaled(1.0), records, recipe=recipe, out=out, resume=True).epsilon > 0
