"""Statistics that a BatchNorm is released with: none, of public records, or noised."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from batch_clipped import bn_model, recipe_of
from small_runs import prepared
from torch import Tensor, nn

from tacit.data.batches import TensorRecords
from tacit.loop import fit
from tacit.losses import cross_entropy
from tacit.methods import moments


def test_noise_is_solved_for_including_the_moments(tmp_path: Path, records: TensorRecords) -> None:
    settings = {"noise": None, "epsilon": 3.0, "batch_norm": "noisy", "moments_noise": 5.0}
    result = fit(bn_model(), records, recipe=recipe_of(**settings), out=tmp_path / "run")
    assert 2.99 < result.epsilon <= 3.0
    without = recipe_of(noise=None, epsilon=3.0)
    plain = fit(bn_model(), records, recipe=without, out=tmp_path / "other")
    multipliers = [r.certificate["noise_multiplier"] for r in (result, plain)]
    assert multipliers[0] > multipliers[1]


def run_with(
    tmp_path: Path, records: TensorRecords, name: str, public: TensorRecords, **settings: Any
) -> dict[str, Tensor]:
    model = bn_model()
    recipe = recipe_of(epochs=1, clip=1e-6, **settings)
    fit(model, records, public=public, recipe=recipe, out=tmp_path / name)
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("kind", ["none", "public"])
def test_an_extreme_record_leaves_no_trace_but_the_noised_update(
    tmp_path: Path, records: TensorRecords, kind: str
) -> None:
    """With the clip next to nothing, weights hardly move; a raw statistic would jump by thousands.

    Every record is used once in the epoch, the planted one too.
    """
    extreme = TensorRecords(records.features.clone(), records.labels)
    extreme.features[0] = 1e6
    public = TensorRecords(records.features[:50].clone(), records.labels[:50])
    settings: dict[str, Any] = {"batch_norm": kind, "sampling": "once-per-epoch"}
    ordinary = run_with(tmp_path, records, "ordinary", public, **settings)
    planted = run_with(tmp_path, extreme, "planted", public, **settings)
    assert ("1.running_mean" in ordinary) == (kind == "public")
    for name, value in ordinary.items():
        torch.testing.assert_close(value, planted[name], rtol=0, atol=1e-4)


def test_noised_moments_move_by_no_more_than_their_clip(
    tmp_path: Path, records: TensorRecords
) -> None:
    extreme = TensorRecords(records.features.clone(), records.labels)
    extreme.features[0] = 1e6
    settings: dict[str, Any] = {
        "batch_norm": "noisy",
        "moments_noise": 1e-4,
        "moments_clip": 1.0,
        "epsilon": None,
    }
    public = TensorRecords(records.features[:50].clone(), records.labels[:50])
    ordinary = run_with(tmp_path, records, "ordinary", public, **settings)
    planted = run_with(tmp_path, extreme, "planted", public, **settings)
    gap = float((ordinary["1.running_mean"] - planted["1.running_mean"]).norm())
    assert 1e-4 < gap < 2 * math.sqrt(16) / 300 * 1.05


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e25])
def test_a_record_whose_moments_are_not_finite_contributes_nothing(
    tmp_path: Path, records: TensorRecords, value: float
) -> None:
    """1e25 is finite, but its square is not: the norm of the moments overflows."""
    settings: dict[str, Any] = {
        "batch_norm": "noisy",
        "moments_noise": 1e-6,
        "moments_clip": 1.0,
        "epsilon": None,
    }
    public = TensorRecords(records.features[:50].clone(), records.labels[:50])
    broken = TensorRecords(records.features.clone(), records.labels)
    broken.features[0] = value
    ordinary = run_with(tmp_path, records, "ordinary", public, **settings)
    planted = run_with(tmp_path, broken, "planted", public, **settings)
    for name in ("1.running_mean", "1.running_var"):
        assert bool(torch.isfinite(planted[name]).all())
    gap = float((ordinary["1.running_mean"] - planted["1.running_mean"]).norm())
    assert gap <= math.sqrt(2 * ordinary["1.running_mean"].numel()) / len(records.labels) * 1.01


def test_moments_are_those_of_all_records_when_noise_is_small(
    tmp_path: Path, records: TensorRecords
) -> None:
    model = bn_model()
    recipe = recipe_of(
        epochs=1, clip=1e-6, batch_norm="noisy", moments_noise=1e-4, moments_clip=100.0
    )
    fit(model, records, recipe=recipe, out=tmp_path / "run")
    inputs = model[0](records.features).detach()
    torch.testing.assert_close(model[1].running_mean, inputs.mean(0), rtol=0, atol=2e-3)
    expected = inputs.var(0, unbiased=False)
    torch.testing.assert_close(model[1].running_var, expected, rtol=0, atol=2e-2)


def test_the_moments_have_the_promised_noise(tmp_path: Path) -> None:
    """A layer with many channels and nothing in it: what is released is the noise alone."""
    x = torch.zeros(200, 2)
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(
            nn.Linear(2, 4000, bias=False), nn.BatchNorm1d(4000), nn.Linear(4000, 2)
        )
    recipe = recipe_of(
        batch_size=20, epochs=0.1, batch_norm="noisy", moments_noise=3.0, moments_clip=2.0
    )
    fit(model, (x, torch.zeros(200, dtype=torch.long)), recipe=recipe, out=tmp_path / "run")
    bound = 2.0 * math.sqrt(2 * 4000)
    expected = 2 * bound * 3.0 / 200
    assert float(model[1].running_mean.std()) == pytest.approx(expected, rel=0.05)


def test_after_every_step_the_state_holds_no_buffers(
    tmp_path: Path, records: TensorRecords
) -> None:
    model = bn_model()
    steps = prepared(tmp_path / "run", records, recipe_of(batch_norm="noisy"), model)
    for _ in range(3):
        steps.advance(cross_entropy)
        assert not list(model.buffers())
        with steps.as_released():
            assert not list(model.buffers())


def test_public_moments_come_from_records_at_even_distances() -> None:
    rows = 2 * moments._ENOUGH + 1
    sorted_by_class = TensorRecords(torch.arange(rows).float()[:, None], torch.zeros(rows).long())
    seen = torch.cat([x for x, _ in moments._some_of(sorted_by_class)]).flatten()
    assert len(seen) <= moments._ENOUGH
    assert seen[0] == 0 and seen[-1] >= rows - 3 and len(set(seen.diff().tolist())) == 1
