"""Correlated noise has the covariance that its factor says."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tacit.clipping.contract import ClippedSum, Layout
from tacit.errors import ArgumentError, NoProofError
from tacit.noise.correlated import BandedStream, CorrelatedNoise, Memory, NoiseStream, TreeStream
from tacit.noise.source import RandomSource
from tacit.privacy.factors import square_root_coefficients, tree_variances

STEPS = 30
SIZE = 40_000
SOURCE = RandomSource.from_seed(3)


def taken(stream: NoiseStream, steps: int = STEPS) -> Tensor:
    return torch.stack([stream.take(step) for step in range(steps)]).double()


def node_matrix(steps: int, reduced: bool) -> np.ndarray:
    """Which nodes, with which weights, make up the noise of each prefix sum of one tree."""
    names: dict[tuple[int, int], int] = {}
    rows = np.zeros((steps, 2 * steps))

    def weights(level: int, end: int) -> np.ndarray:
        column = names.setdefault((level, end), len(names))
        own = np.eye(2 * steps)[column]
        if level == 0 or not reduced:
            return own
        low = weights(level - 1, end - 2 ** (level - 1))
        high = weights(level - 1, end)
        variance = 1.0
        for _ in range(level):
            variance = 1 / (1 + 1 / (2 * variance))
        return variance * own + (1 - variance) * (low + high)

    for size in range(1, steps + 1):
        end = 0
        for level in reversed(range(size.bit_length())):
            if size >> level & 1:
                end += 2**level
                rows[size - 1] += weights(level, end)
    return rows


@pytest.mark.parametrize("reduced", [False, True])
def test_prefix_sums_of_the_tree_have_the_covariance_of_its_nodes(reduced: bool) -> None:
    prefix = taken(TreeStream(STEPS, SIZE, SOURCE, {}, reduced=reduced)).cumsum(0)
    found = (prefix @ prefix.T / SIZE).numpy()
    matrix = node_matrix(STEPS, reduced)
    expected = matrix @ matrix.T
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert (np.abs(found - expected) / scale).max() < 5 * np.sqrt(2 / SIZE)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize(("leaves", "completion"), [(30, False), (8, False), (7, True), (12, True)])
def test_variances_over_restarts_and_completion(
    leaves: int, completion: bool, reduced: bool
) -> None:
    stream = TreeStream(leaves, SIZE, SOURCE, {}, reduced=reduced, completion=completion)
    prefix = taken(stream).cumsum(0)
    trees = [min(leaves, STEPS - start) for start in range(0, STEPS, leaves)]
    expected = tree_variances(trees, reduced=reduced, completion=completion)
    ratio = prefix.var(1).numpy() / expected
    assert np.abs(ratio - 1).max() < 5 * np.sqrt(2 / SIZE)


def test_with_restarts_the_variance_differs_from_one_tree() -> None:
    one = tree_variances([STEPS], reduced=True)
    many = tree_variances([8, 8, 8, 6], reduced=True)
    assert np.abs(one / many - 1).max() > 0.1


@pytest.mark.parametrize("bands", [1, 2, 5, 16, 17, 40, 70])
def test_banded_noise_solves_the_dense_system(bands: int) -> None:
    steps, size = 70, 9
    noise = taken(BandedStream(bands, size, SOURCE, {}), steps)
    c = square_root_coefficients(bands)
    factor = sum(np.diag(np.full(steps - j, c[j]), -j) for j in range(bands))
    draws = torch.stack([SOURCE.normal("banded noise", t, size) for t in range(steps)]).double()
    assert float((torch.tensor(factor) @ noise - draws).abs().max()) < 1e-6


@pytest.mark.parametrize("kind", ["tree", "reduced", "restarts", "banded"])
def test_a_stream_goes_on_from_its_memory_bit_for_bit(kind: str) -> None:
    def stream(memory: Memory) -> NoiseStream:
        if kind == "banded":
            return BandedStream(20, 50, SOURCE, memory)
        restarts = kind == "restarts"
        leaves = 7 if restarts else STEPS
        return TreeStream(leaves, 50, SOURCE, memory, reduced=kind != "tree", completion=restarts)

    whole = taken(stream({}))
    for stop in (1, 6, 7, 16, 23):
        memory: Memory = {}
        first = stream(memory)
        for step in range(stop):
            first.take(step)
        again = stream({name: value.clone() for name, value in memory.items()})
        rest = torch.stack([again.take(step) for step in range(stop, STEPS)]).double()
        assert torch.equal(rest, whole[stop:])


def test_memory_is_what_the_theory_says() -> None:
    tree: Memory = {}
    stream = TreeStream(1 << 10, 4, SOURCE, tree)
    most = 0
    for step in range(1 << 10):
        stream.take(step)
        most = max(most, len(tree))
    assert most <= 10 + 2
    banded: Memory = {}
    wide = BandedStream(40, 4, SOURCE, banded)
    for step in range(100):
        wide.take(step)
    assert banded["past"].shape == (39, 4) and banded["block"].shape == (16, 4)


def test_what_is_returned_may_be_changed_by_the_caller() -> None:
    stream = BandedStream(5, 10, SOURCE, {})
    for step in range(STEPS):
        stream.take(step).mul_(1e6)
    tree = TreeStream(STEPS, 10, SOURCE, {})
    for step in range(STEPS):
        tree.take(step).mul_(1e6)
    untouched = taken(BandedStream(5, 10, SOURCE, {}))[-1]
    again = BandedStream(5, 10, SOURCE, {})
    for step in range(STEPS - 1):
        again.take(step).zero_()
    assert torch.equal(again.take(STEPS - 1).double(), untouched)


def test_noise_follows_the_bounds_and_shares_of_each_group() -> None:
    layout = Layout(("a", "b"), (torch.Size([SIZE]), torch.Size([SIZE])), (0, 1))
    noise = CorrelatedNoise(BandedStream(1, 2 * SIZE, SOURCE, {}), 2.0, SOURCE)
    clipped = ClippedSum(torch.zeros(2 * SIZE), layout, (1.0, 3.0), (0.75, 0.25))
    made = noise.privatise(clipped, 0, denominator=4.0)
    a, b = made.layout.views(made.vector).values()
    assert float(a.std()) == pytest.approx(2.0 * 1.0 / 0.75**0.5 / 4, rel=0.02)
    assert float(b.std()) == pytest.approx(2.0 * 3.0 / 0.25**0.5 / 4, rel=0.02)


def test_only_a_clipped_sum_and_a_positive_scale_are_taken() -> None:
    stream = BandedStream(1, 3, SOURCE, {})
    bare: Any = torch.zeros(3)
    with pytest.raises(ArgumentError, match="noise is 0"):
        CorrelatedNoise(stream, 0, SOURCE)
    with pytest.raises(NoProofError, match="Tensor"):
        CorrelatedNoise(stream, 1.0, SOURCE).privatise(bare, 0, 1.0)
