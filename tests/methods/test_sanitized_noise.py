"""Noise of the sanitization methods: what is added is what is charged for."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from sanitized_runs import WIDTH, dataset, recipe, started
from torch import Tensor, nn

import tacit
from tacit.clipping.contract import Batch
from tacit.methods.class_sums import CENTRE_SHARE, SUMS_SHARE, ClassSums
from tacit.methods.sanitized_joint import JointTraining
from tacit.noise.gaussian import PrivateGradient
from tacit.privacy import events
from tacit.privacy.sanitized import Range
from tacit.steps import Steps


def joint(path: Path, **settings: float | str) -> tuple[Steps, JointTraining]:
    steps = started(path, recipe("joint", **settings), repeatable=False)
    assert isinstance(steps.method, JointTraining)
    return steps, steps.method


def noted(method: JointTraining, monkeypatch: pytest.MonkeyPatch) -> list[PrivateGradient]:
    """The gradients that reach the optimizer, which leaves the weights as they are."""
    seen: list[PrivateGradient] = []
    monkeypatch.setattr(method._optimizer, "apply", lambda found, step: seen.append(found))
    return seen


@pytest.mark.parametrize(("range_", "moved"), [("positive", 1), ("symmetric", 2), ("ball", 2)])
def test_a_joint_step_is_charged_for_both_samples_at_their_own_noise(
    tmp_path: Path, range_: Range, moved: int
) -> None:
    _, method = joint(tmp_path / "run", noise=3.0, activation_noise=4.0, range=range_)
    rate = method._samplers.gradients.probability
    assert rate == method._samplers.activations.probability == 0.25
    assert set(events.leaves(method.charge(0))) == {
        events.poisson(rate, events.gaussian(3.0)),
        events.visible(rate, events.bounded_gaussian(4.0 / moved)),
    }


def test_gradients_under_joint_carry_the_noise_that_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def level(model: nn.Module, batch: Batch) -> Tensor:
        return 0.0 * model(batch[0]).sum(1)

    steps, method = joint(tmp_path / "run", noise=3.0, gradient_clip=0.5, epochs=3)
    seen = noted(method, monkeypatch)
    while steps.remaining:
        steps.advance(level)
    noise = torch.cat([each.vector for each in seen[::2]])
    assert all(name.startswith("0.") for each in seen[::2] for name in each.layout.names)
    assert len(noise) > 600
    assert float(noise.std()) == pytest.approx(3.0 * 0.5 / 30, rel=0.1)


def test_vectors_under_joint_are_of_their_own_sample_with_the_noise_that_is_charged(
    tmp_path: Path,
) -> None:
    steps, method = joint(tmp_path / "run", activation_noise=0.01, clip=0.5)
    model, records = steps.state.model, dataset(0.0)
    assert isinstance(model, nn.Sequential)
    differences = []
    for step in range(4):
        drawn = torch.as_tensor(method._samplers.activations.draw(step))
        pairs = method._released(step)
        assert torch.equal(torch.cat([y for _, y in pairs]), records.labels[drawn])
        with torch.no_grad():
            clean = model[2].bounded(model[:2](records.features[drawn]))
        differences.append((torch.cat([v for v, _ in pairs]) - clean).flatten())
    expected = 0.01 * 0.5 * math.sqrt(WIDTH)
    assert float(torch.cat(differences).std()) == pytest.approx(expected, rel=0.1)


def test_the_head_under_joint_learns_from_noised_vectors_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, method = joint(tmp_path / "run")
    seen = noted(method, monkeypatch)
    steps.advance(tacit.cross_entropy)
    pairs = method._released(0)
    vectors, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    head = method._split.head
    mean = F.cross_entropy(head(vectors), labels)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(mean, list(head.parameters()))])
    torch.testing.assert_close(seen[1].vector, expected)


def test_parts_of_class_sums_get_the_noise_of_their_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = started(tmp_path / "run", recipe("class-sums", noise=3.0))
    method = steps.method
    assert isinstance(method, ClassSums)
    zeros = torch.zeros(4000, dtype=torch.float64)
    found = float(method._noised(zeros, 2.0, 0.25, "a part").std())
    assert found == pytest.approx(3.0 * 2.0 / 0.5, rel=0.05)
    parts: dict[str, tuple[float, float]] = {}
    original = method._noised

    def kept(total: Tensor, moves: float, share: float, purpose: str) -> Tensor:
        parts[purpose] = moves, share
        return original(total, moves, share, purpose)

    monkeypatch.setattr(method, "_noised", kept)
    steps.advance(tacit.cross_entropy)
    rest = 1 - CENTRE_SHARE
    assert parts == {
        "centre": (2.0, CENTRE_SHARE),
        "class sums": (2.0, rest * SUMS_SHARE),
        "second moments": (math.sqrt(2), rest * (1 - SUMS_SHARE)),
    }
    assert sum(share for _, share in parts.values()) == pytest.approx(1.0, abs=1e-12)
