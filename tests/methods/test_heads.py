"""Heads computed from released vectors: what they are made of, and where training one fails."""

import math
from pathlib import Path

import pytest
import torch
from small_runs import save
from torch import Tensor, nn

import tacit
from tacit.assemble import Facts, assemble
from tacit.config import Recipe
from tacit.data.batches import TensorRecords
from tacit.errors import ArgumentError, ModelError
from tacit.methods.class_sums import ClassSums
from tacit.methods.heads import Prototypes, nearest_means
from tacit.methods.sanitized_joint import JointTraining
from tacit.models import SanitizationLayer
from tacit.models.sanitization import Split
from tacit.rundir import RunDir
from tacit.steps import Steps

FEATURES, WIDTH, CLASSES = 6, 4, 3


def network(*, bias: bool = True) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Linear(FEATURES, WIDTH), SanitizationLayer(), nn.Linear(WIDTH, CLASSES, bias=bias)
        )


def unequal(records: int = 3000) -> TensorRecords:
    """Well separated classes, the first of them three times as frequent as the others."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.tensor([0, 0, 0, 1, 2]).repeat(records // 5)
    centres = 3 * torch.eye(FEATURES)[:CLASSES]
    return TensorRecords(
        centres[labels] + 0.3 * torch.randn(len(labels), FEATURES, generator=generator), labels
    )


def recipe(guarantee: str, head: str, noise: float = 1.0, epochs: int = 2) -> Recipe:
    method = {"name": "sanitization", "guarantee": guarantee, "head": head, "range": "ball"}
    return Recipe.parse(
        {
            "method": method,
            "privacy": {"noise": noise},
            "training": {"epochs": epochs, "batch_size": 300, "learning_rate": 0.1},
            "run": {"seed": 1},
        }
    )


def started(path: Path, chosen: Recipe) -> Steps:
    return assemble(network(), unequal(), chosen, RunDir.create(path), Facts())


def test_the_noise_in_a_mean_does_not_move_its_class() -> None:
    generator = torch.Generator().manual_seed(0)
    means = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.0, 0.0]], dtype=torch.float64)
    counts = torch.tensor([10.0, 1000.0], dtype=torch.float64)
    found = []
    for _ in range(4000):
        noise = 2 * torch.sqrt(counts) * torch.randn(4, 2, generator=generator).double()
        weights, bias = nearest_means(means * counts + noise, counts, 4 * counts)
        found.append(bias)
    assert weights.shape == (4, 2)
    expected = -(means**2).sum(0) / 2
    torch.testing.assert_close(torch.stack(found).mean(0), expected, atol=0.05, rtol=0)


def test_one_release_makes_a_head_of_the_released_vectors_alone(tmp_path: Path) -> None:
    steps = started(tmp_path / "run", recipe("one-time", "prototypes"))
    assert steps.method.promise.steps == 1
    steps.advance(tacit.cross_entropy)
    assert steps.remaining == 0
    vectors, labels = (steps.state.memory[key] for key in ("vectors", "labels"))
    means = torch.stack([vectors[labels == c].mean(0) for c in range(CLASSES)])
    assert isinstance(steps.state.model, nn.Sequential)
    head = steps.state.model[2]
    direction = torch.nn.functional.cosine_similarity(head.weight.detach(), means)
    torch.testing.assert_close(direction, torch.ones(CLASSES))


def accuracy(path: Path, chosen: Recipe) -> float:
    run = tacit.fit(network(), unequal(), test=unequal(), recipe=chosen, out=path)
    assert run.accuracy is not None
    return run.accuracy


def test_a_trained_head_says_the_frequent_class_where_means_still_tell(tmp_path: Path) -> None:
    assert accuracy(tmp_path / "a", recipe("one-time", "trained", 2.0, epochs=20)) == 0.6
    assert accuracy(tmp_path / "b", recipe("one-time", "prototypes", 2.0)) > 0.8


def test_joint_training_sets_the_head_from_guesses_and_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = started(tmp_path / "run", recipe("joint", "prototypes", 2.0))
    method, memory = steps.method, steps.state.memory
    assert isinstance(method, JointTraining)
    assert isinstance(steps.state.model, nn.Sequential)
    guessed = memory["class_sums"].clone()
    assert bool((memory["class_counts"] == 1000).all()) and float(guessed.norm()) > 0
    seen: list[tuple[Tensor, Tensor]] = []
    original = method._released

    def noted(step: int) -> list[tuple[Tensor, Tensor]]:
        found = original(step)
        seen.extend(found)
        return found

    monkeypatch.setattr(method, "_released", noted)
    before = [p.detach().clone() for p in steps.state.model[0].parameters()]
    for _ in range(3):
        steps.advance(tacit.cross_entropy)
    sums = guessed + sum(
        v.double().T @ torch.nn.functional.one_hot(y, CLASSES).double() for v, y in seen
    )
    torch.testing.assert_close(memory["class_sums"], sums)
    assert float(memory["class_counts"].sum()) == 3000 + sum(len(y) for _, y in seen)
    after = list(steps.state.model[0].parameters())
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert accuracy(tmp_path / "whole", recipe("joint", "prototypes", 2.0)) > 0.9


def test_a_resumed_run_goes_on_with_its_means(tmp_path: Path) -> None:
    chosen, ends = recipe("joint", "prototypes", 2.0), []
    for stops in (False, True):
        run = RunDir.create(tmp_path / str(stops))
        steps = assemble(network(), unequal(), chosen, run, Facts())
        for _ in range(2):
            steps.advance(tacit.cross_entropy)
        if stops:
            save(steps, run)
            steps.ledger.close()
            again = RunDir.open(run.path)
            steps = assemble(network(), unequal(), chosen, again, Facts(), resume=True)
        steps.advance(tacit.cross_entropy)
        ends.append(steps.state.released_weights())
    for name, weights in ends[0].items():
        assert torch.equal(weights, ends[1][name]), name


@pytest.mark.parametrize(
    ("guarantee", "head"),
    [("paper", "prototypes"), ("one-time", "ridge"), ("joint", "ridge"), ("class-sums", "trained")],
)
def test_heads_that_a_variant_does_not_make_are_refused(
    tmp_path: Path, guarantee: str, head: str
) -> None:
    with pytest.raises(ArgumentError, match=f"head is '{head}'"):
        started(tmp_path / "run", recipe(guarantee, head))


def test_a_head_without_a_bias_cannot_be_computed() -> None:
    with pytest.raises(ModelError, match="bias"):
        Prototypes(Split(network(bias=False)), {})


def test_second_moments_move_by_no_more_than_their_sensitivity() -> None:
    generator = torch.Generator().manual_seed(2)
    pairs = torch.randn(200, 2, 5, generator=generator)
    unit = pairs / pairs.norm(dim=2, keepdim=True).clamp_min(1)
    outer = unit[..., :, None] * unit[..., None, :]
    assert float((outer[:, 0] - outer[:, 1]).flatten(1).norm(dim=1).max()) <= math.sqrt(2) + 1e-6
    assert float((unit[:, 0] - unit[:, 1]).norm(dim=1).max()) <= 2.0


@pytest.mark.parametrize("ridge", [True, False])
@pytest.mark.parametrize("wild", [5.0, 1e6, math.inf])
def test_one_record_moves_each_sum_by_no_more_than_its_noise_is_made_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ridge: bool, wild: float
) -> None:
    """Whatever features a record has, at the first centre and at the released one."""
    released: list[list[tuple[Tensor, float]]] = []

    def noted(self: ClassSums, total: Tensor, moves: float, share: float, purpose: str) -> Tensor:
        released[-1].append((total, moves))
        return total * 0 + 150.0 if purpose == "centre" else total

    monkeypatch.setattr(ClassSums, "_noised", noted)
    head = "ridge" if ridge else "prototypes"
    for number, features in enumerate((-wild, wild)):
        records = unequal(300)
        records.features[0] = features
        released.append([])
        run = RunDir.create(tmp_path / str(number))
        steps = assemble(network(), records, recipe("class-sums", head), run, Facts())
        steps.advance(tacit.cross_entropy)
    pairs = list(zip(*released, strict=True))
    assert len(pairs) == (3 if ridge else 1)
    apart = [float((one - other).norm()) for (one, _), (other, _) in pairs]
    assert all(d <= moves * 1.0001 for d, (_, (_, moves)) in zip(apart, pairs, strict=True))
    assert max(apart) > 0.5 or math.isinf(wild)
