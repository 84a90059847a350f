"""Selective update, part by part: the threshold, buffer, patience, choice, decay, and refusals."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import CLASSES, FEATURES, NEVER, flat, small_model, small_recipe
from small_runs import DECAYING as LONG
from small_runs import selective as prepared
from torch import Tensor, nn

from tacit.assemble import Facts, assemble
from tacit.clipping.contract import Batch, ClippedSum
from tacit.data.batches import TensorRecords
from tacit.errors import ArgumentError, NoProofError
from tacit.losses import cross_entropy
from tacit.methods.candidates import Candidates, preferred
from tacit.methods.loss_test import NoisyLossChange
from tacit.methods.phases import Dials, PhasedDecay
from tacit.methods.selective import Selective
from tacit.noise.gaussian import GaussianNoise, PrivateGradient
from tacit.noise.source import RandomSource
from tacit.private_steps import PrivateSteps
from tacit.rundir import RunDir
from tacit.state import Snapshot
from tacit.steps import Steps

DECAYING = {**LONG, "epochs": 10}


def method_of(steps: Steps) -> Selective:
    assert isinstance(steps.method, Selective)
    return steps.method


@pytest.mark.parametrize(("after", "bound"), [(-9.0, 1), (9.0, 0)])
@pytest.mark.parametrize("statistic", ["clipped-mean", "clipped-sum"])
def test_candidates_are_accepted_as_often_as_is_accounted_for(
    tmp_path: Path,
    records: TensorRecords,
    monkeypatch: pytest.MonkeyPatch,
    after: float,
    bound: int,
    statistic: str,
) -> None:
    """Changes of loss far below or above the clip: acceptance has the largest or smallest chance
    that thinning counts with. Another noise or threshold of the test would show."""
    turns = 0

    def saturated(self: NoisyLossChange, loss: Any, batches: Any) -> Tensor:
        nonlocal turns
        turns += 1
        return torch.full((200,), 0.0 if turns % 2 else after, dtype=torch.float64)

    monkeypatch.setattr(NoisyLossChange, "losses", saturated)
    chosen = {"validation_noise": 1.37, "beta": -1.5}
    if statistic == "clipped-sum":
        chosen = {"validation_noise": 5.0, "beta": 0.2}
    steps = prepared(tmp_path / "run", records, epochs=60, statistic=statistic, **chosen)
    while steps.remaining:
        steps.advance(cross_entropy)
    found = method_of(steps).outcome()
    chance = method_of(steps)._start.acceptance.bounds[bound]
    assert 0.02 < chance < 0.98 and found["trials"] == 600
    deviations = (found["accepted"] - 600 * chance) / math.sqrt(600 * chance * (1 - chance))
    assert abs(deviations) < 4


def scripted(monkeypatch: pytest.MonkeyPatch, outcomes: str) -> None:
    following = iter(outcomes)
    monkeypatch.setattr(
        NoisyLossChange, "noised", lambda *_: -1e9 if next(following) == "A" else 1e9
    )


@pytest.mark.parametrize(
    ("outcomes", "applied"),
    [
        ("RRRRA", [0, 0, 0, 0, 1]),  # nothing waits: the next accepted one is applied alone
        ("ARRR", [0, 0, 0, 1]),  # one waits: it is applied as soon as there are three
        ("RRARRA", [0, 0, 0, 0, 0, 1]),  # never three in a row: two are needed
        ("RRRAAA", [0, 0, 0, 1, 1, 2]),  # and needed again afterwards
    ],
)
def test_after_so_many_rejections_one_candidate_is_enough(
    tmp_path: Path,
    records: TensorRecords,
    monkeypatch: pytest.MonkeyPatch,
    outcomes: str,
    applied: list[int],
) -> None:
    scripted(monkeypatch, outcomes)
    steps = prepared(tmp_path / "run", records, buffer=2, patience=3)
    found = []
    for _ in outcomes:
        steps.advance(cross_entropy)
        found.append(method_of(steps).course.counts["applied"])
    assert found == applied


def test_the_lowest_noisy_loss_is_chosen_and_the_highest_by_the_papers_text() -> None:
    source = RandomSource.from_seed(0)
    for step in range(20):
        assert preferred([0.0, -3.0, 1.0], 0.5, False, source, step) == 1
        assert preferred([0.0, -3.0, 1.0], 0.5, True, source, step) == 2
    close = [preferred([0.0, -0.4, 2.0], 0.5, False, source, step) for step in range(400)]
    assert set(close) == {0, 1} and abs(close.count(0) - 200) < 4 * 10


@pytest.mark.parametrize(("choice", "taken"), [("lowest", 1), ("literal", 0)])
def test_the_chosen_candidate_is_what_training_goes_on_from(
    tmp_path: Path,
    records: TensorRecords,
    monkeypatch: pytest.MonkeyPatch,
    choice: str,
    taken: int,
) -> None:
    changes = iter([-1e8, -1e9])
    monkeypatch.setattr(NoisyLossChange, "noised", lambda *_: next(changes))
    steps = prepared(tmp_path / "run", records, buffer=2, choice=choice)
    steps.advance(cross_entropy)
    seen: list[Tensor] = []
    choose = Selective._choose

    def looked(self: Selective, step: int) -> Snapshot:
        seen.extend(self._candidates.at(index).tensors["model.0.weight"] for index in (0, 1))
        return choose(self, step)

    monkeypatch.setattr(Selective, "_choose", looked)
    steps.advance(cross_entropy)
    assert not torch.equal(seen[0], seen[1])
    assert torch.equal(steps.state.model.state_dict()["0.weight"], seen[taken])


def test_averaged_candidates_are_the_mean_of_all() -> None:
    candidates = Candidates({})
    for value in (1.0, 2.0, 6.0):
        tensors = {"model.w": torch.full((2,), value), "optimizer.0.step": torch.tensor(3)}
        candidates.add(Snapshot(tensors, {"step": 0, "optimizer": {}, "history": {}}), value)
    found = candidates.average().tensors
    assert found["model.w"].tolist() == [3.0, 3.0] and int(found["optimizer.0.step"]) == 3


@pytest.mark.parametrize("choice", ["average", "random"])
def test_other_choices_train_and_are_charged_by_thinning(
    tmp_path: Path, records: TensorRecords, choice: str
) -> None:
    steps = prepared(tmp_path / "run", records, buffer=2, choice=choice, beta=0.5)
    start = flat(steps.state.model)
    while steps.remaining:
        steps.advance(cross_entropy)
    assert not torch.equal(start, flat(steps.state.model))
    charged = [e.body["event"] for e in steps.ledger.entries if e.kind == "charge"]
    assert all("thinned" in event for event in charged)


def test_the_unit_of_the_papers_text_is_accounted_for_as_the_noise_that_it_is(
    tmp_path: Path, records: TensorRecords
) -> None:
    literal = {"validation_unit": "literal", "validation_clip": 0.5, "validation_noise": 1.37}
    method = method_of(prepared(tmp_path / "run", records, **literal))
    assert method._start.test.noise == pytest.approx(1.37 / (2 * 0.5))
    assert method._schedule_now().test.noise == pytest.approx(1.37)


def test_phases_decay_what_the_paper_says() -> None:
    phases, start = PhasedDecay(fast=0.5, slow=0.9, progress=0.02), Dials(2.0, 3.0, -1.0, 1.0)
    assert phases.turned(start, 0.03) == Dials(1.0, 1.5, -1.0, 0.5)
    assert phases.turned(start, 0.02) == Dials(1.8, 3.0, -0.9, 0.9)


def test_decayed_noise_is_what_is_drawn_and_what_is_charged(
    tmp_path: Path, records: TensorRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[float] = []
    privatise = GaussianNoise.privatise

    def looked(
        self: GaussianNoise, clipped: ClippedSum, step: int, divisor: float
    ) -> PrivateGradient:
        before = clipped.vector.clone()
        found = privatise(self, clipped, step, divisor)
        if before.numel() > 1:  # not the questions about the accuracy
            pure = found.vector * divisor - before
            drawn.append(float(pure.std()) / clipped.bounds[0])
        return found

    monkeypatch.setattr(GaussianNoise, "privatise", looked)
    steps = prepared(tmp_path / "run", records, **DECAYING)
    method = method_of(steps)
    assert method._decay is not None
    noises = []
    while steps.remaining:
        now, asks = method.course.dials, method._question() is not None
        test = replace(method._start.test, noise=now.test_noise, beta=now.beta)
        trial = method._decay.budget.trial(replace(method._start, noise=now.noise, test=test))
        paid = steps._spent[trial]
        steps.advance(cross_entropy)
        if not asks:
            noises.append(now.noise)
            assert steps._spent[trial] == paid + 1
    assert min(noises) < 0.8 * noises[0]
    size = sum(p.numel() for p in steps.state.model.parameters())
    for found, noise in zip(drawn, noises, strict=True):
        assert found == pytest.approx(noise, rel=5 / math.sqrt(2 * size))


def test_nothing_decays_beyond_its_boundary(tmp_path: Path, records: TensorRecords) -> None:
    ended = []
    for until in (None, 1e-6):
        bounded = {**DECAYING, "decay_until": until}
        steps = prepared(tmp_path / str(until), records, **bounded)
        while steps.remaining:
            steps.advance(cross_entropy)
        ended.append(method_of(steps).course.dials.noise)
    assert ended[0] < 4.0 and ended[1] == 4.0


def test_an_interrupted_trial_is_rolled_back_and_nothing_is_released(
    tmp_path: Path, records: TensorRecords
) -> None:
    model = small_model()
    steps = PrivateSteps(
        model,
        (records.features, records.labels),
        method="dpsur",
        epochs=2,
        batch_size=30,
        noise=1.0,
        epsilon=None,
        validation_batch_size=60,
        beta=NEVER,
        out=tmp_path / "run",
        seed=1,
    )
    start, armed = flat(model), [False]

    def fragile(model: nn.Module, batch: Batch) -> Tensor:
        if armed[0] and not torch.is_grad_enabled() and not torch.equal(flat(model), start):
            raise ArithmeticError("in the second pass of the test")
        return cross_entropy(model, batch)

    drawn = iter(steps)
    next(drawn)
    steps.step(fragile)
    next(drawn)
    armed[0] = True
    with pytest.raises(ArithmeticError):
        steps.step(fragile)
    assert torch.equal(flat(model), start)
    with pytest.raises(ArgumentError, match="interrupted half way"):
        steps.finish()
    assert not (tmp_path / "run" / "weights.safetensors").exists()


class Remembering(torch.optim.SGD):
    """Adds up every gradient that it has ever seen, where no snapshot looks."""

    def step(self, closure: Any = None) -> Any:
        self.seen = getattr(self, "seen", 0.0) + float(self.param_groups[0]["params"][0].grad.sum())
        return super().step(closure)


@pytest.mark.parametrize("hooked", [True, False])
def test_an_optimizer_that_cannot_be_rolled_back_is_refused(
    tmp_path: Path, records: TensorRecords, hooked: bool
) -> None:
    model = small_model()
    recipe = small_recipe(method="dpsur", validation_batch_size=60)
    kind, reason = (torch.optim.SGD, "has hooks") if hooked else (Remembering, "not one of torch's")
    own = kind(model.parameters(), lr=0.1)
    if hooked:
        own.register_step_pre_hook(lambda optimizer, *_: None)
    run = RunDir.create(tmp_path / "run")
    with pytest.raises(NoProofError, match=f"optimizer is {kind.__name__}, which .*{reason}"):
        assemble(model, records, recipe, run, Facts(), optimizer=own)
    assert not run.ledger.exists()


def test_an_end_before_the_first_update_is_refused(tmp_path: Path, records: TensorRecords) -> None:
    with pytest.raises(ArgumentError, match=r"stop_at_claimed is 0.0001.*a single update"):
        prepared(tmp_path / "run", records, stop_at_claimed=0.0001)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_accuracy_is_not_asked_of_a_network_with_one_output(
    tmp_path: Path, records: TensorRecords
) -> None:
    assert CLASSES > 2
    labels = (records.labels > 0).long()
    recipe = small_recipe(**DECAYING)
    with pytest.raises(ArgumentError, match=r"shape \(1, 1\).*Set decay to false"):
        assemble(
            nn.Sequential(nn.Linear(FEATURES, 1)),
            TensorRecords(records.features, labels),
            recipe,
            RunDir.create(tmp_path / "run"),
            Facts(),
        )
