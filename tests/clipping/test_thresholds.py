"""Thresholds over a run: what they are at each step, and what they may depend on."""

from typing import Any

import pytest
import torch
from torch import nn

from tacit.clipping.fast import FastEngine
from tacit.clipping.groups import Groups
from tacit.clipping.mini_sets import MiniSetEngine
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import Automatic, Flat, Layerwise, Multiplied
from tacit.clipping.thresholds import NormEstimate, Thresholds, mean_norms
from tacit.data.batches import TensorRecords
from tacit.errors import ArgumentError
from tacit.losses import cross_entropy

GROUPS = Groups((("0.weight", "0.bias"), ("2.weight", "2.bias")))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def public(count: int = 20) -> TensorRecords:
    torch.manual_seed(1)
    return TensorRecords(torch.randn(count, 5), torch.randint(0, 3, (count,)))


def adaptive(clipping: str, **settings: Any) -> Thresholds:
    estimate = NormEstimate(public(), GROUPS, every=10)
    return Thresholds(clipping, GROUPS, 0.5, estimate=estimate, **settings)


def test_flat_rules_decay() -> None:
    thresholds = Thresholds("flat", GROUPS, 2.0, decay=0.5, epoch=10)
    assert [thresholds.rule(step) for step in (0, 9, 10, 25)] == [
        Flat(2.0),
        Flat(2.0),
        Flat(1.0),
        Flat(0.5),
    ]
    assert Thresholds("automatic", GROUPS, 2.0).rule(7) == Automatic(2.0)
    assert not thresholds.constant and Thresholds("flat", GROUPS, 2.0).constant


def test_norms_become_thresholds_as_each_paper_says() -> None:
    norms = (0.2, 0.8)
    assert adaptive("adaptive-layerwise").rule(0, norms) == Layerwise(GROUPS, (0.125, 0.5))
    assert adaptive("adaptive-norms").rule(0, norms) == Layerwise(GROUPS, norms)
    assert adaptive("multiplied").rule(0, norms) == Multiplied(GROUPS, 0.5, (4.0, 1.0))
    given = Thresholds("layerwise", GROUPS, 0.5, decay=0.5, epoch=1, given=(0.3, 0.4))
    assert given.rule(1, given.given) == Layerwise(GROUPS, (0.15, 0.2))
    assert Thresholds("layerwise", GROUPS, 0.5).rule(0) == Layerwise(GROUPS, (0.5, 0.5))


def test_noise_weights_become_shares() -> None:
    rule = adaptive("adaptive-layerwise", weights=(1.0, 3.0)).rule(0, (1.0, 1.0))
    assert rule.shares == pytest.approx((0.1, 0.9))


def test_a_group_without_gradient_keeps_a_threshold() -> None:
    for norms in ((0.0, 1.0), (0.0, 0.0), (float("inf"), 1.0)):
        for kind in ("adaptive-layerwise", "adaptive-norms", "multiplied"):
            bounds = adaptive(kind).rule(0, norms).bounds
            assert all(0 < bound < float("inf") for bound in bounds)


@pytest.mark.parametrize("engine", [ReferenceEngine, FastEngine])
def test_estimates_are_mean_norms_of_single_records(engine: type) -> None:
    model, data = net(), public()
    expected = torch.zeros(2, dtype=torch.float64)
    for i in range(len(data)):
        loss = cross_entropy(model, data.batch(torch.tensor([i]))).mean()
        found = torch.autograd.grad(loss, list(model.parameters()))
        flat = [torch.cat([g.flatten() for g in found[a:b]]) for a, b in ((0, 2), (2, 4))]
        expected += torch.stack([part.double().norm() for part in flat]) / len(data)
    made = engine(model, Layerwise(GROUPS, (1.0, 1.0)))
    kept = made.rule
    batches = [data.batch(part) for part in torch.arange(20).split(8)]
    torch.testing.assert_close(mean_norms(made, GROUPS, cross_entropy, batches), expected)
    assert made.rule is kept


def test_estimates_of_mini_sets_are_norms_of_their_mean_gradient() -> None:
    model, data = net(), public()
    estimate = NormEstimate(data, GROUPS, 1, size=10)
    assert [len(batch[0]) for batch in estimate.batches(0)] == [10, 10]
    engine = MiniSetEngine(model, Layerwise(GROUPS, (1.0, 1.0)))
    found = mean_norms(engine, GROUPS, cross_entropy, estimate.batches(0))
    single = mean_norms(
        ReferenceEngine(model, engine.rule), GROUPS, cross_entropy, estimate.batches(0)
    )
    assert bool((found < single).all())


def test_estimates_change_only_when_it_is_time_and_survive_in_memory() -> None:
    model, memory = net(), {}
    estimate = NormEstimate(public(), GROUPS, every=10, memory=memory)
    thresholds = Thresholds("adaptive-layerwise", GROUPS, 0.5, estimate=estimate)
    engine = ReferenceEngine(model, thresholds.rule(0))
    first = thresholds.at(0, engine, cross_entropy)
    with torch.no_grad():
        model[2].weight.mul_(3)
    assert thresholds.at(9, engine, cross_entropy) == first
    resumed = NormEstimate(public(), GROUPS, every=10, memory=dict(memory))
    again = Thresholds("adaptive-layerwise", GROUPS, 0.5, estimate=resumed)
    assert again.at(9, engine, cross_entropy) == first
    assert thresholds.at(10, engine, cross_entropy) != first


def test_every_turn_takes_the_next_records() -> None:
    estimate = NormEstimate(public(20), GROUPS, every=1, most=8)
    taken = [torch.cat([b[0] for b in estimate.batches(turn)]) for turn in range(3)]
    everything = public(20).features
    torch.testing.assert_close(taken[0], everything[:8])
    torch.testing.assert_close(taken[2], torch.cat([everything[16:], everything[:4]]))


@pytest.mark.parametrize(
    ("clipping", "settings", "words"),
    [
        ("adaptive-layerwise", {}, "data.public"),
        ("multiplied", {}, "give thresholds"),
        ("layerwise", {"given": (1.0,)}, "thresholds has 1"),
        ("layerwise", {"weights": (1.0, 2.0, 3.0)}, "noise_weights has 3"),
    ],
)
def test_missing_norms_are_asked_for(clipping: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Thresholds(clipping, GROUPS, 1.0, **settings)


@pytest.mark.parametrize(
    ("clipping", "setting", "way_out"),
    [
        ("flat", "noise_weights", "'layerwise'"),
        ("automatic", "noise_weights", "'adaptive-norms'"),
        ("multiplied", "noise_weights", "'adaptive-layerwise'"),
        ("flat", "thresholds", "'layerwise' or 'multiplied'"),
        ("adaptive-layerwise", "thresholds", "'layerwise' or 'multiplied'"),
    ],
)
def test_values_that_a_rule_would_not_use_are_refused(
    clipping: str, setting: str, way_out: str
) -> None:
    values = {"weights" if setting == "noise_weights" else "given": (1.0, 2.0)}
    with pytest.raises(ArgumentError, match=f"{setting} is given, but .*{clipping}.*{way_out}"):
        adaptive(clipping, **values)
