"""Correlated noise has the covariance that its factor says."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tacit.clipping.contract import ClippedSum, Layout
from tacit.errors import ArgumentError, NoProofError
from tacit.noise.correlated import (
    BandedStream,
    CorrelatedNoise,
    Memory,
    NoiseStream,
    TreeStream,
    cut_coefficients,
    widening,
)
from tacit.noise.gaussian import noised
from tacit.noise.source import RandomSource
from tacit.privacy.factors import square_root_coefficients, tree_variances

STEPS = 30
SIZE = 40_000
SOURCE = RandomSource.from_seed(3)


def taken(stream: NoiseStream, steps: int = STEPS, size: int = SIZE) -> Tensor:
    """The noise alone: what is released for sums of zero."""
    nothing = torch.zeros(size, dtype=torch.float64)
    return torch.stack([stream.release(step, nothing) for step in range(steps)])


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


def random_sums(steps: int, size: int) -> Tensor:
    draw = torch.Generator().manual_seed(4)
    sums = torch.randn(steps, size, generator=draw, dtype=torch.float64) * 100
    return (sums * 2**24).round() / 2**24


@pytest.mark.parametrize("bands", [1, 2, 5, 16, 17, 40, 70])
def test_banded_releases_are_rows_of_the_factor_with_independent_noise(
    bands: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C·(release) = C·u + z to the last bit, z what each step's own release added."""
    steps, size, drawn = 70, 9, []

    def recorded(vector: Tensor, *rest: Any) -> Tensor:
        made = noised(vector, *rest)
        drawn.append(made - vector)
        return made

    monkeypatch.setattr("tacit.noise.correlated.noised", recorded)
    sums = random_sums(steps, size)
    stream = BandedStream(bands, size, SOURCE, {})
    released = torch.stack([stream.release(step, sums[step]) for step in range(steps)])
    c = cut_coefficients(bands)
    factor = torch.tensor(sum(np.diag(np.full(steps - j, c[j]), -j) for j in range(bands)))
    assert torch.equal(factor @ (released - sums), torch.stack(drawn))
    assert np.abs(c - square_root_coefficients(bands)).max() <= 2.0**-12
    assert (c <= square_root_coefficients(bands)).all() and c[0] == 1


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize(("leaves", "completion"), [(30, False), (8, False), (7, True)])
def test_running_sums_of_the_tree_are_sums_of_released_nodes(
    leaves: int, completion: bool, reduced: bool
) -> None:
    """The sums themselves come through unchanged, and the noise does not depend on their size."""
    sums = random_sums(STEPS, SIZE // 10)
    stream = TreeStream(leaves, SIZE // 10, SOURCE, {}, reduced=reduced, completion=completion)
    released = torch.stack([stream.release(step, sums[step]) for step in range(STEPS)])
    noise = (released - sums).cumsum(0)
    trees = [min(leaves, STEPS - start) for start in range(0, STEPS, leaves)]
    expected = tree_variances(trees, reduced=reduced, completion=completion)
    ratio = noise.var(1).numpy() / expected
    assert np.abs(ratio - 1).max() < 5 * np.sqrt(20 / SIZE)


@pytest.mark.parametrize("kind", ["tree", "reduced", "restarts", "banded"])
def test_a_stream_goes_on_from_its_memory_bit_for_bit(kind: str) -> None:
    def stream(memory: Memory) -> NoiseStream:
        if kind == "banded":
            return BandedStream(20, 50, SOURCE, memory)
        restarts = kind == "restarts"
        leaves = 7 if restarts else STEPS
        return TreeStream(leaves, 50, SOURCE, memory, reduced=kind != "tree", completion=restarts)

    whole = taken(stream({}), size=50)
    nothing = torch.zeros(50, dtype=torch.float64)
    for stop in (1, 6, 7, 16, 23):
        memory: Memory = {}
        first = stream(memory)
        for step in range(stop):
            first.release(step, nothing)
        again = stream({name: value.clone() for name, value in memory.items()})
        rest = torch.stack([again.release(step, nothing) for step in range(stop, STEPS)])
        assert torch.equal(rest, whole[stop:])


def test_memory_is_what_the_theory_says() -> None:
    tree: Memory = {}
    stream = TreeStream(1 << 10, 4, SOURCE, tree)
    most = 0
    nothing = torch.zeros(4, dtype=torch.float64)
    for step in range(1 << 10):
        stream.release(step, nothing)
        most = max(most, len(tree))
    assert most <= 2 * 10 + 3
    banded: Memory = {}
    wide = BandedStream(40, 4, SOURCE, banded)
    for step in range(100):
        wide.release(step, nothing)
    assert banded["past"].shape == (39, 4) and banded["block"].shape == (16, 4)


def test_what_is_returned_may_be_changed_by_the_caller() -> None:
    nothing = torch.zeros(10, dtype=torch.float64)
    for make in (
        lambda: BandedStream(5, 10, SOURCE, {}),
        lambda: TreeStream(STEPS, 10, SOURCE, {}),
        lambda: TreeStream(STEPS, 10, SOURCE, {}, reduced=False),
    ):
        changed, untouched = make(), taken(make(), size=10)
        for step in range(STEPS):
            released = changed.release(step, nothing)
            assert torch.equal(released, untouched[step])
            released.mul_(1e6)
    assert not nothing.any()


def test_noise_grows_with_what_rounding_moves() -> None:
    assert 1 < widening(2.0, 10_000) < 1 + 2.1 * 2**-23.5 * 100
    with pytest.raises(ArgumentError, match="cannot be resolved"):
        widening(1e4, 10**7)


def test_scaled_and_rounded_sums_of_neighbours_stay_within_the_widened_sensitivity() -> None:
    """Worst-case directions: all of one record's move is lost or gained in rounding."""
    size, multiplier = 200_000, 3.0
    seen: list[Tensor] = []

    class Recorder:
        largest = 2.0**16

        def release(self, step: int, sums: Tensor) -> Tensor:
            seen.append(sums.clone())
            return sums

    layout = Layout(("a",), (torch.Size([size]),), (0,))
    record = torch.full((size,), size**-0.5)
    base = torch.rand(size, generator=torch.Generator().manual_seed(0)) * 50
    noise = CorrelatedNoise(Recorder(), multiplier, SOURCE)
    for step, total in enumerate((base.double(), base.double() + record.double())):
        noise.privatise(ClippedSum(total, layout, (1.0,), (1.0,)), step, 1.0)
    assert float((seen[1] - seen[0]).norm()) <= 1 / multiplier
    assert all(torch.equal(u, (u * 2**24).round() / 2**24) for u in seen)


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
