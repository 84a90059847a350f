"""Batch clipping end to end: draws, clip, noise, charge and statistics are what the proof names."""

import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batch_clipped import bn_model, recipe_of
from small_runs import FEATURES, Wide, flat, prepared, save, small_recipe
from torch import Tensor, nn

from tacit.clipping.contract import Batch, LossFunction
from tacit.clipping.mini_sets import mean_gradient
from tacit.data.batches import TensorRecords
from tacit.data.sampling import PartitionSampler, PoissonSampler, SubsetSampler
from tacit.errors import ArgumentError, ModelError, NoProofError
from tacit.loop import Result, fit
from tacit.losses import cross_entropy
from tacit.methods.batch_clipping import BatchClipping
from tacit.noise.source import RandomSource
from tacit.privacy import accountants, events, ledger
from tacit.privacy.batch_plan import BatchSchedule
from tacit.privacy.relations import Relation
from tacit.rundir import RunDir

SOURCE = RandomSource.from_seed(0)
SAMPLINGS = ("subset", "partition", "once-per-epoch")


@pytest.mark.parametrize(("mini_sets", "clip", "noise"), [(1, 0.5, 2.0), (5, 1.0, 0.7), (30, 1, 1)])
def test_without_gradient_an_update_is_noise_of_twice_the_clip(
    tmp_path: Path, records: TensorRecords, mini_sets: int, clip: float, noise: float
) -> None:
    recipe = recipe_of(noise=noise, clip=clip, mini_sets=mini_sets, learning_rate=1.0)
    model = Wide()
    before = flat(model)
    steps = prepared(tmp_path / "run", records, recipe, model)
    steps.advance(lambda net, batch: 0.0 * net(batch[0]).sum(1))
    expected = 2 * clip * noise / mini_sets
    assert float((flat(model) - before).std()) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("mini_sets", [1, 3, 30])
def test_an_update_is_the_mean_of_clipped_mini_sets(
    tmp_path: Path, records: TensorRecords, sampling: str, mini_sets: int
) -> None:
    recipe = recipe_of(
        noise=1e-6, clip=0.05, mini_sets=mini_sets, sampling=sampling, learning_rate=1.0
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Linear(FEATURES, 3)
    before = flat(model)
    steps = prepared(tmp_path / "run", records, recipe, model)
    expected, seen = torch.zeros_like(before), 0
    for batch in steps.method.draw(0):
        for x, y in zip(*(t.split(30 // mini_sets) for t in batch), strict=True):
            loss = cross_entropy(model, (x, y)).mean()
            g = torch.cat(
                [p.flatten() for p in torch.autograd.grad(loss, list(model.parameters()))]
            )
            expected += g * min(1.0, 0.05 / float(g.norm())) / mini_sets
            seen += len(x)
    steps.advance(cross_entropy)
    assert seen == 30
    torch.testing.assert_close(before - flat(model), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_ledger_holds_what_the_schedule_promises(
    tmp_path: Path, records: TensorRecords, sampling: str
) -> None:
    recipe = recipe_of(sampling=sampling, mini_sets=2, epochs=3)
    result = fit(bn_model(), records, recipe=recipe, out=tmp_path / "run")
    schedule = BatchSchedule(300, 30, 3, 1.0, sampling, 2)
    entries = ledger.read(result.path / "ledger.jsonl")
    charged = [events.from_json(e.body["event"]) for e in entries if e.kind == "charge"]
    assert charged == [schedule.charge(step) for step in range(schedule.steps)]
    spent = accountants.epsilon(events.counted(charged), 1e-5, Relation.REPLACE_ONE)
    assert spent == pytest.approx(schedule.proven(1e-5)) and result.epsilon >= spent
    claim = schedule.claimed(1e-5)
    assert claim is not None and result.certificate["claimed"]["mu"] == pytest.approx(claim.mu)
    assert list(result.certificate["proven"]) == ["replace-one"]


def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, records: TensorRecords) -> None:
    recipe = recipe_of(batch_norm="noisy", mini_sets=3, epochs=1)
    whole = fit(one := bn_model(), records, recipe=recipe, out=tmp_path / "whole")
    steps = prepared(tmp_path / "cut", records, recipe, bn_model())
    for _ in range(4):
        steps.advance(cross_entropy)
    save(steps, RunDir.open(tmp_path / "cut"))
    steps.ledger.close()
    fit(two := bn_model(), records, recipe=recipe, out=tmp_path / "cut", resume=True)
    assert whole.path.exists()
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name


def test_momentum_over_pieces_is_another_pass_with_the_same_promise(
    tmp_path: Path, records: TensorRecords
) -> None:
    found: list[Result] = []
    for set_pass in ("mean", "momentum"):
        recipe = recipe_of(set_pass=set_pass, pass_pieces=3, mini_sets=2)
        found.append(fit(bn_model(), records, recipe=recipe, out=tmp_path / set_pass))
    assert found[0].epsilon == found[1].epsilon
    assert found[0].certificate["weights_sha256"] != found[1].certificate["weights_sha256"]


def test_a_pass_of_ones_own_trains_under_the_same_promise(
    tmp_path: Path, records: TensorRecords
) -> None:
    def backwards(model: nn.Module, trained: Any, loss: LossFunction, batch: Batch) -> list[Tensor]:
        return [-g for g in mean_gradient(model, trained, loss, batch)]

    recipe = recipe_of(noise=1e-5, clip=0.05, learning_rate=0.1, epochs=0.1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        start = nn.Linear(FEATURES, 3)
    moved: list[Tensor] = []
    for set_pass in ("mean", backwards):
        model = deepcopy(start)
        result = fit(model, records, recipe=recipe, set_pass=set_pass, out=tmp_path / str(set_pass))
        moved.append(flat(model) - flat(start))
        assert result.epsilon == pytest.approx(BatchSchedule(300, 30, 0.1, 1e-5).proven(1e-5))
    assert float(moved[0].norm()) == pytest.approx(0.1 * 0.05, rel=0.01)
    torch.testing.assert_close(moved[1], -moved[0], rtol=0, atol=1e-5)
    for single in (recipe_of(mini_sets=30), small_recipe()):
        with pytest.raises(ArgumentError, match="set_pass is a function"):
            fit(deepcopy(start), records, recipe=single, set_pass=backwards, out=tmp_path / "no")


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"mini_sets": 30}, ModelError, "GroupNorm"),
        ({"mini_sets": 7}, ArgumentError, "divisor"),
        ({"batch_norm": "public"}, ArgumentError, "data.public"),
        ({"batch_norm": "noisy", "average": 0.9}, ArgumentError, "average"),
        ({"relation": "add-or-remove-one"}, NoProofError, "replace-one"),
    ],
)
def test_what_no_proof_covers_is_refused(
    tmp_path: Path, records: TensorRecords, settings: dict[str, Any], error: type, words: str
) -> None:
    with pytest.raises(error, match=words):
        prepared(tmp_path / "run", records, recipe_of(**settings), bn_model())


@pytest.mark.parametrize("method", ["dpsgd", "dpftrl", "dpsur", "dpsgd-br", "sanitization"])
def test_batch_norm_is_refused_elsewhere(
    tmp_path: Path, records: TensorRecords, method: str
) -> None:
    with pytest.raises(ModelError, match="GroupNorm"):
        prepared(tmp_path / "run", records, small_recipe(method=method), bn_model())


def test_a_buffer_that_records_change_is_refused_even_here(
    tmp_path: Path, records: TensorRecords
) -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(FEATURES, 3)
            self.register_buffer("last", torch.zeros(FEATURES))

        def forward(self, x: Tensor) -> Tensor:
            self.last = x.detach().mean(0)
            out: Tensor = self.linear(x)
            return out

    with pytest.raises(ModelError, match="buffer last"):
        prepared(tmp_path / "run", records, recipe_of(), Remembers())


def test_a_sampler_that_draws_otherwise_is_refused() -> None:
    schedule = BatchSchedule(300, 30, 1, 1.0, "subset", 2)
    equipment: Any = None
    samplers: list[Any] = [
        PoissonSampler(300, 30, SOURCE),
        SubsetSampler(300, 20, SOURCE),
        PartitionSampler(300, 15, 2, SOURCE),
    ]
    for sampler in samplers:
        with pytest.raises(NoProofError, match="what runs"):
            BatchClipping(schedule, sampler, equipment, Relation.REPLACE_ONE, None)


def test_subsets_are_uniform_and_partitions_fixed() -> None:
    subset = SubsetSampler(12, 3, SOURCE)
    drawn = np.array([subset.draw(step) for step in range(4000)])
    assert all(len(set(row)) == 3 for row in drawn)
    counts = np.bincount(drawn.ravel(), minlength=12)
    assert np.abs(counts - 1000).max() < 5 * math.sqrt(1000)
    pairs = np.bincount((np.sort(drawn, 1)[:, 0] * 12 + np.sort(drawn, 1)[:, 2]), minlength=144)
    assert (pairs > 0).sum() == 55
    fixed = PartitionSampler(10, 4, 2, SOURCE)
    sets = set()
    for step in range(60):
        rows = fixed.draw(step)
        sets |= {tuple(rows[i : i + 4]) for i in range(0, len(rows), 4)}
    assert len(sets) == 3 and sorted(np.concatenate([list(s) for s in sets])) == list(range(10))
    turns = PartitionSampler(10, 4, 1, SOURCE, in_turn=True)
    epoch = np.concatenate([turns.draw(step) for step in range(3)])
    assert sorted(epoch) == list(range(10))
