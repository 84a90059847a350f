"""Selective update end to end: what a trial costs, what it leaves, what it may decide."""

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import ALWAYS, DECAYING, NEVER, RECORDS, small_model, small_recipe
from small_runs import selective as prepared
from torch import Tensor

from tacit.assemble import Facts, assemble
from tacit.data.batches import Gatherer, TensorRecords
from tacit.data.sampling import PoissonSampler
from tacit.errors import ArgumentError, BudgetError
from tacit.loop import fit
from tacit.losses import cross_entropy
from tacit.methods.loss_test import NoisyLossChange
from tacit.methods.phases import ChargedFeedback
from tacit.methods.selective import Selective
from tacit.noise.source import RandomSource
from tacit.privacy import accountants, events
from tacit.rundir import RunDir
from tacit.steps import Steps
from tacit.verify import account


def everything(steps: Steps) -> dict[str, Tensor]:
    kept = {k: v for k, v in steps.state.snapshot().tensors.items() if k[:6] != "memory"}
    rates = [group["lr"] for group in steps.state.optimizer.inner.param_groups]
    return {**kept, "rates": torch.tensor(rates)}


def charges(steps: Steps) -> list[dict[str, Any]]:
    return [e.body["event"] for e in steps.ledger.entries if e.kind == "charge"]


def method_of(steps: Steps) -> Selective:
    assert isinstance(steps.method, Selective)
    return steps.method


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_rejecting_everything_changes_no_bit_and_is_charged(
    tmp_path: Path, records: TensorRecords, optimizer: str
) -> None:
    steps = prepared(
        tmp_path / "run", records, beta=ALWAYS, optimizer=optimizer, momentum=0.9, average=0.9
    )
    for _ in range(3):
        steps.advance(cross_entropy)
    before = everything(steps)
    assert any(name.startswith("optimizer") for name in before)
    method = method_of(steps)
    method.course.dials = replace(method.course.dials, beta=NEVER)
    while steps.remaining:
        steps.advance(cross_entropy)
    after = everything(steps)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert len(charges(steps)) == 20
    assert method.outcome() == {"trials": 20, "accepted": 3, "applied": 3}
    assert accountants.epsilon(steps.spent(), 1e-5) > 0


def test_accepting_everything_is_dpsgd_to_the_last_bit(
    tmp_path: Path, records: TensorRecords
) -> None:
    ours = prepared(tmp_path / "a", records, beta=ALWAYS, momentum=0.5, average=0.9)
    recipe = small_recipe(momentum=0.5, average=0.9)
    dpsgd = assemble(small_model(), records, recipe, RunDir.create(tmp_path / "b"), Facts())
    for _ in range(6):
        ours.advance(cross_entropy)
        dpsgd.advance(cross_entropy)
    assert everything(ours).keys() == everything(dpsgd).keys()
    for name, value in everything(ours).items():
        assert torch.equal(value, everything(dpsgd)[name]), name


def test_a_trial_is_charged_by_thinning_in_full_or_through_the_filter(
    tmp_path: Path, records: TensorRecords
) -> None:
    kinds = {
        "thinned": {},
        "averaged": {"buffer": 2, "choice": "average"},
        "compared": {"buffer": 2},
        "decayed": {"method": "dpsgd-br", "feedback_batch_size": 100},
    }
    found = {}
    for name, chosen in kinds.items():
        steps = prepared(tmp_path / name, records, **chosen)
        steps.advance(cross_entropy)
        steps.advance(cross_entropy)
        found[name] = charges(steps)[1]
    gradient = {"poisson": events.sampling_probability(RECORDS, 30), "of": {"gaussian": 1.0}}
    test = {"poisson": events.sampling_probability(RECORDS, 60), "of": {"gaussian": 1.37}}
    assert found["thinned"]["of"] == gradient == found["averaged"]["of"]
    assert 0.4277 < found["thinned"]["thinned"] <= 1.0
    assert found["thinned"]["test"]["quantiles"] == pytest.approx([-2.5 / 2.74, -0.5 / 2.74])
    assert found["compared"] == {"all": [gradient, test]}
    assert found["decayed"]["of"] == {"all": [gradient, test]}
    assert found["decayed"]["adaptive"] > 1


def test_noisy_results_are_released_only_where_they_are_charged(
    tmp_path: Path, records: TensorRecords
) -> None:
    noisy = {
        name: "the noisy result of every test"
        in prepared(tmp_path / name, records, **chosen).method.promise.released
        for name, chosen in {
            "thinned": {},
            "averaged": {"buffer": 2, "choice": "average"},
            "decayed": {"decay": True, "feedback_batch_size": 100},
            "compared": {"buffer": 2},
        }.items()
    }
    assert noisy == {"thinned": False, "averaged": False, "decayed": False, "compared": True}


def test_a_trial_is_on_disk_before_its_outcome_is_known(
    tmp_path: Path, records: TensorRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = prepared(tmp_path / "run", records)
    noised, seen = NoisyLossChange.noised, []

    def looked(self: NoisyLossChange, step: int, *rest: Any) -> float:
        lines = (tmp_path / "run" / "ledger.jsonl").read_bytes().splitlines()
        seen.append(sum(json.loads(line)["kind"] == "charge" for line in lines))
        return noised(self, step, *rest)

    monkeypatch.setattr(NoisyLossChange, "noised", looked)
    for _ in range(3):
        steps.advance(cross_entropy)
    assert seen == [1, 2, 3]


def test_tests_are_sampled_by_themselves(tmp_path: Path, records: TensorRecords) -> None:
    method = method_of(prepared(tmp_path / "run", records, batch_size=60))
    both = [
        (set(method._sampler.draw(s).tolist()), set(method._test._sampler.draw(s).tolist()))
        for s in range(200)
    ]
    shared = sum(len(gradient & test) for gradient, test in both) / 200
    assert abs(shared - RECORDS * 0.04) < 4.5 * math.sqrt(RECORDS * 0.04 * 0.96 / 200)


def test_other_rates_than_the_schedule_says_are_refused(
    tmp_path: Path, records: TensorRecords
) -> None:
    with pytest.raises(ArgumentError, match="validation_batch_size"):
        prepared(tmp_path / "run", records, validation_batch_size=301)


def test_the_budget_is_kept_while_noise_decays(tmp_path: Path, records: TensorRecords) -> None:
    recipe = small_recipe(**DECAYING, epsilon=2.0)
    result = fit(small_model(), records, recipe=recipe, out=tmp_path / "run")
    issued = result.certificate
    assert result.epsilon <= 2.0
    assert issued["outcome"]["trials"] < 300 and issued["outcome"]["last_noise"] < 3.0
    assert "RDP filter" in issued["accounting"] and "charged" in issued["feedback"]
    assert set(issued["proven"]) == {"add-or-remove-one"}
    assert issued["accountant"] == "rdp at one order, fixed in advance"
    assert "applied" in (tmp_path / "run" / "certificate.txt").read_text("utf-8")
    assert issued["claimed"]["epsilon"] > 0 and "paper 001" in issued["claimed"]["source"]
    assert account(tmp_path / "run") == issued
    lines = [json.loads(x) for x in (tmp_path / "run" / "ledger.jsonl").read_bytes().splitlines()]
    spent = [events.from_json(line["event"]) for line in lines if line["kind"] == "charge"]
    assert accountants.epsilon(events.counted(spent), 1e-5) <= 2.0
    asked = sum("poisson" in events.to_json(event)["of"] for event in spent)
    assert asked == issued["outcome"]["applied"] + 1 or asked == issued["outcome"]["applied"]


def test_lost_trials_that_cannot_be_repeated_count_against_the_same_limit(
    tmp_path: Path, records: TensorRecords
) -> None:
    first = prepared(tmp_path / "run", records, **DECAYING, epsilon=1.0)
    for _ in range(8):
        first.advance(cross_entropy)
    spent = accountants.epsilon(first.spent(), 1e-5)
    other = TensorRecords(records.features + 1, records.labels)
    again = assemble(
        small_model(),
        other,
        small_recipe(**DECAYING, epsilon=1.0),
        RunDir.open(tmp_path / "run"),
        Facts(),
        resume=True,
    )
    assert again.state.step == 0 and accountants.epsilon(again.spent(), 1e-5) == spent
    while again.remaining:
        again.advance(cross_entropy)
    generations = [e.body["generation"] for e in again.ledger.entries if e.kind == "charge"]
    assert generations.count(0) == 8 and generations.count(1) > 8
    assert spent < accountants.epsilon(again.spent(), 1e-5) <= 1.0


def test_a_spent_filter_refuses_another_trial(tmp_path: Path, records: TensorRecords) -> None:
    steps = prepared(tmp_path / "run", records, **DECAYING, epsilon=1.0)
    while steps.remaining:
        steps.advance(cross_entropy)
    assert 10 < steps.state.step < 300
    with pytest.raises(BudgetError, match="budget is spent"):
        steps.advance(cross_entropy)


def test_public_feedback_costs_nothing_and_is_named(tmp_path: Path, records: TensorRecords) -> None:
    steps = prepared(
        tmp_path / "run", records, records, method="dpsgd-br", feedback="public", beta=0.5
    )
    while steps.remaining:
        steps.advance(cross_entropy)
    assert all(next(iter(body["of"])) in ("all", "thinned") for body in charges(steps))
    assert "no protection" in steps.method.promise.details["feedback"]
    assert method_of(steps).course.dials.noise < 1.0
    with pytest.raises(ArgumentError, match="public records"):
        prepared(tmp_path / "none", records, method="dpsgd-br", feedback="public")


def test_asking_private_records_finds_their_accuracy_and_is_charged() -> None:
    labels = (torch.arange(20_000) % 10 == 0).long()
    answers = torch.nn.functional.one_hot(labels * 0, 2).float()
    records = TensorRecords(answers, labels)
    source = RandomSource.from_seed(3)
    feedback = ChargedFeedback(
        PoissonSampler(20_000, 4000, source, "feedback sampling"),
        Gatherer(records, 1024, 1, ()),
        source,
        10.0,
    )
    model = torch.nn.Identity()
    found = [feedback.accuracy(step, model, feedback.draw(step)) for step in range(40)]
    assert statistics.mean(found) == pytest.approx(0.9, abs=0.004)
    blurred_by_size = math.sqrt(4000 * 0.9) / 4000
    assert 10 / 4000 < statistics.stdev(found) < 0.6 * blurred_by_size
    rate = events.sampling_probability(20_000, 4000)
    assert feedback.event == events.poisson(rate, events.gaussian(10.0))
    noise = [4000 * (1 - feedback.accuracy(step, model, ())) for step in range(40, 1540)]
    assert statistics.stdev(noise) == pytest.approx(10.0, rel=0.08), "four deviations"
    assert abs(statistics.mean(noise)) < 4 * 10.0 / math.sqrt(1500)


def test_training_ends_before_a_claim_is_exceeded(tmp_path: Path, records: TensorRecords) -> None:
    recipe = small_recipe(
        method="dpsur",
        noise=2.0,
        epochs=10,
        validation_batch_size=60,
        beta=0.5,
        stop_at_claimed=2.0,
    )
    result = fit(small_model(), records, recipe=recipe, out=tmp_path / "run")
    claimed = result.certificate["claimed"]["epsilon"]
    assert 1.5 < claimed <= 2.0 < result.epsilon
    assert result.certificate["outcome"]["trials"] < 100


def test_proven_does_not_depend_on_how_many_were_accepted(
    tmp_path: Path, records: TensorRecords
) -> None:
    found = {}
    for seed in (1, 2, 3):
        recipe = small_recipe(method="dpsur", validation_batch_size=60, seed=seed)
        result = fit(small_model(), records, recipe=recipe, out=tmp_path / str(seed))
        found[result.certificate["outcome"]["accepted"]] = result.epsilon
    assert len(found) > 1 and len(set(found.values())) == 1
