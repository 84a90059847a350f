"""Private features, public labels: what each variant releases, hides and refuses."""

import math
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from sanitized_runs import (
    CLASSES,
    FEATURES,
    OWN,
    RECORDS,
    WIDTH,
    dataset,
    network,
    recipe,
    started,
)
from small_runs import save
from torch import Tensor, nn

import tacit
from tacit.assemble import Facts, assemble
from tacit.config import Recipe
from tacit.errors import ArgumentError, ModelError, NoProofError
from tacit.method_sections import SanitizationRecipe
from tacit.methods.class_sums import CENTRE_SHARE, SUMS_SHARE, ClassSums
from tacit.methods.sanitized_joint import JointTraining
from tacit.privacy import accountants, events
from tacit.privacy.relations import Relation
from tacit.rundir import RunDir
from tacit.verify import account


def trained(path: Path, chosen: Recipe, own: float) -> dict[str, Tensor]:
    steps = started(path, chosen, own)
    while steps.remaining:
        steps.advance(tacit.cross_entropy)
    return steps.state.released_weights()


def test_the_paper_writes_a_record_into_the_encoder(tmp_path: Path) -> None:
    before = network()[0].weight[:, OWN].detach()
    chosen = recipe("paper", epochs=8, clip=2.0, noise=0.2)
    without = trained(tmp_path / "without", chosen, 0.0)["0.weight"][:, OWN]
    present = trained(tmp_path / "with", chosen, 1.0)["0.weight"][:, OWN]
    assert torch.equal(without, before)
    assert float((present - before).norm()) > 0.005


@pytest.mark.parametrize("guarantee", ["one-time", "class-sums"])
def test_a_frozen_encoder_shows_no_record(tmp_path: Path, guarantee: str) -> None:
    before = network()[0].weight
    ends = {own: trained(tmp_path / str(own), recipe(guarantee), own) for own in (0.0, 5.0)}
    for weights in ends.values():
        assert torch.equal(weights["0.weight"], before)


@pytest.mark.parametrize(
    ("guarantee", "name", "settings"),
    [
        ("one-time", "3.weight", {"noise": 3.0}),
        ("class-sums", "3.weight", {"noise": 3.0}),
        ("class-sums", "3.weight", {"noise": 3.0, "head": "prototypes"}),
        ("joint", "0.weight", {"noise": 4.0, "epochs": 1}),
        ("joint", "0.weight", {"noise": 4.0, "epochs": 1, "head": "prototypes"}),
    ],
)
def test_sound_variants_change_no_weight_beyond_noise(
    tmp_path: Path, guarantee: str, name: str, settings: dict[str, Any]
) -> None:
    """Over many keys, the record's own column and the head are the same up to their spread."""
    ends: dict[float, list[Tensor]] = {0.0: [], 5.0: []}
    for seed in range(12):
        for own, found in ends.items():
            chosen = recipe(guarantee, seed, **settings)
            weights = trained(tmp_path / f"{own} {seed}", chosen, own)[name]
            found.append(weights[:, OWN] if guarantee == "joint" else weights.flatten())
    a, b = (torch.stack(ends[own]) for own in (0.0, 5.0))
    spread = torch.sqrt((a.var(0) + b.var(0)) / 12)
    assert bool((spread > 0).all())
    distance = (a.mean(0) - b.mean(0)) / spread
    assert float(distance.abs().max()) < 5.0


def test_joint_training_moves_a_column_that_no_record_has(tmp_path: Path) -> None:
    before = network()[0].weight[:, OWN].detach()
    moved = trained(tmp_path / "run", recipe("joint", noise=4.0), 0.0)["0.weight"][:, OWN]
    assert float((moved - before).abs().median()) > 0.01


def test_one_release_is_charged_once_and_records_are_not_seen_again(tmp_path: Path) -> None:
    steps = started(tmp_path / "run", recipe("one-time"))
    method = steps.method
    assert method.charge(0) == events.visible(1.0, events.bounded_gaussian(1.0))
    assert isinstance(method.charge(1), dpa.NoOpDpEvent)
    assert sum(len(batch[0]) for batch in method.draw(0)) == RECORDS
    assert list(method.draw(1)) == []
    steps.advance(tacit.cross_entropy)
    vectors = steps.state.memory["vectors"].clone()
    steps.advance(tacit.cross_entropy)
    assert torch.equal(steps.state.memory["vectors"], vectors)
    spent = accountants.epsilon(steps.spent(), 1e-5, Relation.REPLACE_FEATURES)
    assert spent == pytest.approx(4.37718, abs=1e-5)


def test_released_vectors_have_the_noise_that_is_charged(tmp_path: Path) -> None:
    chosen = recipe("one-time", noise=2.0, clip=0.5)
    steps = started(tmp_path / "run", chosen)
    steps.advance(tacit.cross_entropy)
    model = steps.state.model
    assert isinstance(model, nn.Sequential)
    clean = model[2].eval()(model[:2](dataset(0.0).features))
    noise = steps.state.memory["vectors"] - clean
    expected = 2.0 * 0.5 * math.sqrt(WIDTH)
    assert float(noise.std()) == pytest.approx(expected, rel=0.1)


def test_class_sums_are_noised_by_how_far_a_record_moves_them(tmp_path: Path) -> None:
    chosen = recipe("class-sums", noise=3.0, head="prototypes", clip=2.0)
    steps = started(tmp_path / "run", chosen)
    assert isinstance(steps.method, ClassSums)
    assert steps.method.charge(0) == events.visible(1.0, events.bounded_gaussian(3.0))
    counts = torch.bincount(dataset(0.0).labels, minlength=CLASSES)
    found = []
    for seed in range(40):
        again = started(
            tmp_path / f"{seed}", recipe("class-sums", seed, noise=3.0, head="prototypes", clip=2.0)
        )
        again.advance(tacit.cross_entropy)
        head = again.state.released_weights()["3.weight"]
        found.append(head * 2.0 * counts[:, None])
    spread = torch.stack(found).std(0)
    assert float(spread.mean()) == pytest.approx(3.0 * 2.0, rel=0.1)


def test_second_moments_carry_the_noise_of_their_share(tmp_path: Path) -> None:
    method = started(tmp_path / "run", recipe("class-sums", noise=3.0)).method
    assert isinstance(method, ClassSums)
    noise = method._symmetric(torch.zeros(300, 300, dtype=torch.float64), 0.25)
    assert torch.equal(noise, noise.T)
    whole = 3.0 * math.sqrt(2) / math.sqrt(0.25)
    rows, columns = torch.triu_indices(300, 300, 1)
    assert float(noise.diagonal().std()) == pytest.approx(whole, rel=0.15)
    assert float(noise[rows, columns].std()) == pytest.approx(whole / math.sqrt(2), rel=0.02)
    assert CENTRE_SHARE + (1 - CENTRE_SHARE) * (SUMS_SHARE + (1 - SUMS_SHARE)) == 1.0


def test_joint_samples_are_independent_and_both_are_charged(tmp_path: Path) -> None:
    method = started(tmp_path / "run", recipe("joint")).method
    assert isinstance(method, JointTraining)
    samplers = method._samplers
    draws = [
        (set(samplers.gradients.draw(t)), set(samplers.activations.draw(t))) for t in range(60)
    ]
    both = np.mean([len(a & b) for a, b in draws])
    assert both == pytest.approx(RECORDS * 0.25**2, rel=0.25)
    leaves = set(events.leaves(method.charge(0)))
    rate = samplers.gradients.probability
    assert events.poisson(rate, events.gaussian(1.0)) in leaves and len(leaves) == 2


def test_the_head_alone_learns_from_activations_under_joint(tmp_path: Path) -> None:
    method = started(tmp_path / "run", recipe("joint")).method
    assert isinstance(method, JointTraining)
    assert all(name.startswith("0.") for name in method._engine.layout.names)
    assert method._head.names == ("3.weight", "3.bias")


def test_a_threshold_follows_the_weights(tmp_path: Path) -> None:
    steps = started(tmp_path / "run", recipe("paper", follow=0.1, epochs=3))
    model = steps.state.model
    assert isinstance(model, nn.Sequential)
    layer, weights = model[2], model[0].weight.data
    assert float(layer.threshold) == pytest.approx(0.1 * float(weights.norm()))
    while steps.remaining:
        steps.advance(tacit.cross_entropy)
    assert float(layer.threshold) == pytest.approx(0.1 * float(weights.norm()))
    trace = steps.method.trace()["sanitization"]
    assert len(trace["spread"]) == len(trace["threshold"]) == len(trace["norm"]) == 3


def fitted(path: Path, chosen: Recipe) -> tacit.Result:
    return tacit.fit(network(), dataset(0.0), recipe=chosen, out=path)


def test_an_early_stop_lowers_what_is_spent_and_not_what_is_promised(tmp_path: Path) -> None:
    stopping = {"stop": "stop", "window": 2, "slope": 1e9, "epochs": 6}
    run = fitted(tmp_path / "joint", recipe("joint", noise=3.0, **stopping))
    whole = run.certificate
    assert run.metrics["sanitization"]["flags"] == [3]
    assert whole["stopped"]["step"] == 12 and whole["steps"] == 24
    planned = account(tmp_path / "joint")["guarantee"]["epsilon"]
    assert whole["spent_by_now"]["epsilon"] < planned == whole["guarantee"]["epsilon"]
    assert whole["spent_by_now"]["name"] == "spent at stop (ex post)"
    text = (tmp_path / "joint" / "certificate.txt").read_text("utf-8")
    assert f"spent at stop (ex post): {whole['spent_by_now']['epsilon']:g}" in text
    assert f"Proven: (ε = {planned:g}," in text
    assert "stopped early, after step 12 of 24" in text
    flagged = started(tmp_path / "flag", recipe("joint", **{**stopping, "stop": "flag"}))
    while flagged.remaining:
        flagged.advance(tacit.cross_entropy)
    assert flagged.state.step == 24
    assert flagged.method.trace()["sanitization"]["flags"] == [3, 5]


def test_the_papers_certificate_denies_first(tmp_path: Path) -> None:
    stopping = {"stop": "stop", "window": 2, "slope": 1e9, "epochs": 6}
    run = fitted(tmp_path / "paper", recipe("paper", **stopping))
    text = (tmp_path / "paper" / "certificate.txt").read_text("utf-8")
    first = text.splitlines()[0]
    assert "No guarantee for the weights follows" in first and "raw activations" in first
    certificate = account(tmp_path / "paper")
    assert certificate["guarantee"] is None and certificate["proven"] == {}
    assert run.epsilon == math.inf
    assert certificate["stopped"]["claimed"] < certificate["claimed"]["epsilon"]
    assert certificate["head_only"] > certificate["claimed"]["epsilon"]
    assert "stopped early, after step 12 of 24" in text
    claimed = certificate["stopped"]["claimed"]
    assert f"claimed for the steps taken until then: {claimed:.4f}" in text


def test_the_paper_must_be_asked_for_by_name() -> None:
    method = Recipe.parse({"method": {"name": "sanitization"}}).method
    assert isinstance(method, SanitizationRecipe) and method.guarantee == "one-time"


@pytest.mark.parametrize(
    ("guarantee", "settings", "error"),
    [
        ("one-time", {"stop": "stop"}, NoProofError),
        ("class-sums", {"stop": "flag"}, NoProofError),
        ("class-sums", {"range": "positive"}, ArgumentError),
        ("joint", {"dropout": 0.5, "mask": "bernoulli"}, NoProofError),
    ],
)
def test_what_no_proof_covers_is_refused(
    tmp_path: Path, guarantee: str, settings: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        started(tmp_path / "run", recipe(guarantee, **settings))


def test_several_views_of_a_record_are_refused(tmp_path: Path) -> None:
    chosen = recipe("joint").with_settings(views=2, augment=("flip",))
    with pytest.raises(NoProofError, match="views"):
        started(tmp_path / "run", chosen)


def test_networks_without_the_layer_are_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    with pytest.raises(ModelError, match="with_sanitization"):
        tacit.fit(model, dataset(0.0), recipe=recipe("one-time"), out=tmp_path / "run")


@pytest.mark.parametrize("method", ["dpsgd", "batch-clipping"])
def test_the_layer_has_no_place_in_other_methods(tmp_path: Path, method: str) -> None:
    with pytest.raises(ModelError, match=r"2: a SanitizationLayer.*use method 'sanitization'"):
        tacit.fit(network(), dataset(0.0), method=method, batch_size=30, out=tmp_path / "run")
    plain = tacit.fit(network(), dataset(0.0), method="plain", batch_size=30, out=tmp_path / "no")
    assert plain.certificate["guarantee"] is None


def test_a_resumed_release_is_not_made_again(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    chosen = recipe("one-time")
    steps = assemble(network(), dataset(0.0), chosen, run, Facts())
    for _ in range(3):
        steps.advance(tacit.cross_entropy)
    save(steps, run)
    vectors = steps.state.memory["vectors"].clone()
    steps.ledger.close()
    again = assemble(network(), dataset(0.0), chosen, RunDir.open(run.path), Facts(), resume=True)
    assert torch.equal(again.state.memory["vectors"], vectors)
    again.advance(tacit.cross_entropy)
    charged = [e.body["event"] for e in again.ledger.entries if e.kind == "charge"]
    assert sum("visible" in event for event in charged) == 1
