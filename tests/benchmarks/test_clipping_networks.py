"""The benchmark's networks are the product's, and everyone gets the same weights and records."""

from pathlib import Path

import numpy as np
import pytest
import torch
from clipping_suite import network
from clipping_suite.network import Network
from clipping_suite.torch_network import module, problem, with_weights
from clipping_suite.workloads import WORKLOADS, Problem, named, records

from tacit.models import build


@pytest.mark.parametrize(
    ("name", "shape", "described"),
    [
        ("mlp", (784,), network.mlp(784, 512, 256, 128, 10)),
        ("lenet5", (1, 28, 28), network.lenet5()),
        ("tempered-cnn", (1, 28, 28), network.tempered_cnn()),
    ],
)
def test_described_networks_are_those_of_the_product(
    name: str, shape: tuple[int, ...], described: Network
) -> None:
    product = build(name, shape, 10).eval()
    own = module(described)
    with torch.no_grad():
        for mine, theirs in zip(own.parameters(), product.parameters(), strict=True):
            mine.copy_(theirs)
    x = torch.randn(3, *shape)
    assert torch.allclose(own(x), product(x), atol=1e-6)


def test_described_text_network_is_that_of_the_product() -> None:
    product = build("text-mean", (12,), 2, tokens=50)
    own = module(network.text_mean(50, 16, 2))
    with torch.no_grad():
        for mine, theirs in zip(own.parameters(), product.parameters(), strict=True):
            mine.copy_(theirs)
    ids = torch.randint(0, 50, (4, 12))
    assert torch.allclose(own(ids), product(ids), atol=1e-6)


def test_resnet18_has_as_many_weights_as_the_one_for_small_images() -> None:
    assert sum(p.numel() for p in module(network.resnet18()).parameters()) == 11_173_962


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_records_fit_the_network(name: str) -> None:
    given = problem(named(name, 2))
    model = with_weights(given.workload.network, given.weights)
    outputs = model(torch.from_numpy(given.x))
    assert outputs.shape == (2, given.workload.classes)
    assert given.y.max() < given.workload.classes


def test_tokens_repeat_and_are_never_padding() -> None:
    ids, _ = records(named("text-mean", 4))
    assert ids.min() >= 1
    assert ids.max() < 10_000
    assert all(len(np.unique(row)) < len(row) for row in ids)


def test_a_stored_problem_comes_back_bit_for_bit(tmp_path: Path) -> None:
    given = problem(named("lenet5-256", 3))
    given.save(tmp_path / "problem.npz")
    found = Problem.load(given.workload, tmp_path / "problem.npz")
    assert np.array_equal(found.x, given.x)
    assert np.array_equal(found.y, given.y)
    assert list(found.weights) == list(given.weights)
    assert all(np.array_equal(found.weights[k], given.weights[k]) for k in given.weights)
