"""Streams node by node and row by row: what is noised, under which address, and what adds up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tacit.clipping.contract import ClippedSum, Layout
from tacit.errors import ArgumentError, RunError
from tacit.noise import correlated
from tacit.noise.correlated import (
    BandedStream,
    CorrelatedNoise,
    Memory,
    TreeStream,
    cut_coefficients,
    widening,
)
from tacit.noise.source import RandomSource
from tacit.privacy.participation import completed_size
from tacit.privacy.relations import Relation

SOURCE = RandomSource.from_seed(3)
LAYOUT = Layout(("a", "b"), (torch.Size([3]), torch.Size([2, 2])), (0, 1))


def clipped(values: Tensor | None = None) -> ClippedSum:
    total = torch.zeros(7) if values is None else values
    return ClippedSum(total, LAYOUT, (1.0, 4.0), (0.25, 0.75))


class Passed:
    """A stream that returns the sums it was given, and remembers them."""

    def __init__(self, largest: float = 2.0**20) -> None:
        self.largest = largest
        self.given: list[tuple[int, Tensor]] = []

    def release(self, step: int, sums: Tensor) -> Tensor:
        self.given.append((step, sums.clone()))
        return sums


def scales(multiplier: float) -> Tensor:
    wide = multiplier * widening(multiplier, 7)
    each = [wide * 1.0 / 0.5] * 3 + [wide * 4.0 / math.sqrt(0.75)] * 4
    return torch.tensor(each, dtype=torch.float64)


def test_sums_travel_in_units_of_the_noise_and_come_back_divided() -> None:
    stream, values = Passed(), torch.linspace(-3, 4, 7)
    made = CorrelatedNoise(stream, 2.0, SOURCE).privatise(clipped(values.clone()), 5, 8.0)
    ((step, given),) = stream.given
    assert step == 5 and given.dtype == torch.float64
    expected = values.double() / scales(2.0)
    assert torch.equal(given, (expected * 2**24).round() / 2**24)
    torch.testing.assert_close(made.vector.double(), values.double() / 8, rtol=1e-6, atol=1e-6)
    assert made.layout is LAYOUT and made.protected


def test_the_result_lies_in_the_memory_of_the_sum() -> None:
    sums = clipped()
    made = CorrelatedNoise(Passed(), 1.0, SOURCE).privatise(sums, 0, 1.0)
    assert made.vector.data_ptr() == sums.vector.data_ptr()


@pytest.mark.parametrize("largest", [8.0, 2.0**20])
def test_sums_are_kept_within_what_computes_exactly(largest: float) -> None:
    """NaN becomes zero; others are clamped to the stream's bound, and to 2^16 in any case."""
    stream = Passed(largest)
    values = torch.tensor([math.nan, math.inf, -math.inf, 1e30, -1e30, 1.0, -1.0])
    CorrelatedNoise(stream, 1.0, SOURCE).privatise(clipped(values), 0, 1.0)
    most = min(largest, 2.0**16)
    given = stream.given[0][1]
    assert given[:5].tolist() == [0.0, most, -most, most, -most]
    assert 0 < given[5] < 1 and given[6] == -given[5]


def test_the_noise_is_addressed_by_the_step_the_sum_and_the_scales_that_are_used() -> None:
    asked: list[Any] = []
    source: Any = type("Asked", (), {"address": lambda self, *given: asked.append(given)})()
    sums = clipped(torch.ones(7))
    CorrelatedNoise(Passed(), 2.0, source).privatise(sums, 9, 3.0)
    ((purpose, content, given),) = asked
    assert purpose == "correlated noise 9" and content is sums.vector
    assert given == pytest.approx((float(scales(2.0)[0]), float(scales(2.0)[-1])), rel=1e-12)
    assert given == clipped().noise_scales(2.0 * widening(2.0, 7), Relation.ZERO_OUT)


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.inf, math.nan])
def test_impossible_noise_is_refused(multiplier: float) -> None:
    with pytest.raises(ArgumentError, match="noise is"):
        CorrelatedNoise(Passed(), multiplier, SOURCE)


def test_noise_is_widened_by_what_rounding_can_move() -> None:
    """Rounding moves each of n coordinates by at most 2^-25 and both sums of a pair."""
    for multiplier, size in ((1.0, 1), (3.0, 10_000), (100.0, 2**25)):
        moved = 2.0**-23.5 * math.sqrt(size)
        assert widening(multiplier, size) == pytest.approx(1 / (1 - multiplier * moved), rel=1e-12)
    share = 2.0**-23.5
    assert widening(0.499 / share, 1) == pytest.approx(1 / 0.501, rel=1e-9)
    for multiplier in (0.5 / share, 0.6 / share, 5 / share):
        with pytest.raises(ArgumentError, match="cannot be resolved"):
            widening(multiplier, 1)


class Nodes:
    """Stands for `noised`: keeps what is released under each name and adds a public number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, noise: bool = True) -> None:
        self.released: dict[str, Tensor] = {}
        self._noise = noise
        monkeypatch.setattr(correlated, "noised", self.noised)

    def noised(self, vector: Tensor, deviation: float, purpose: str, source: Any) -> Tensor:
        assert deviation == 1.0 and source is SOURCE and purpose not in self.released
        noise = torch.full_like(vector, float(1 + len(self.released)) / 8 if self._noise else 0.0)
        self.released[purpose] = vector.clone()
        return vector + noise


def integers(steps: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(2).integers(-9, 9, (steps, 3)).astype(float))


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize(
    ("leaves", "completion"),
    [(16, False), (13, False), (5, False), (5, True), (1, False), (4, True)],
)
def test_each_node_is_the_sum_of_its_leaves_and_released_once(
    leaves: int, completion: bool, reduced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node (tree, level, last leaf); where the whole subtree is used, every node of it."""
    steps, nodes = 16, Nodes(monkeypatch)
    sums = integers(steps)
    stream = TreeStream(leaves, 3, SOURCE, {}, reduced=reduced, completion=completion)
    for step in range(steps):
        stream.release(step, sums[step].clone())
    expected: dict[str, Tensor] = {}
    for tree in range(-(-steps // leaves)):
        own = sums[tree * leaves : (tree + 1) * leaves]
        closed = completion and (tree + 1) * leaves < steps
        size = completed_size(leaves) if closed else len(own)
        own = torch.cat([own, torch.zeros(size - len(own), 3)])
        for leaf in range(size):
            top = ((leaf + 1) & -(leaf + 1)).bit_length() - 1
            for level in range(top + 1) if reduced else (top,):
                covered = own[leaf + 1 - 2**level : leaf + 1]
                expected[f"tree node {tree} {level} {leaf}"] = covered.sum(0)
    assert nodes.released.keys() == expected.keys()
    assert all(torch.equal(nodes.released[name], value) for name, value in expected.items())


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize(("leaves", "completion"), [(16, False), (5, False), (5, True), (1, True)])
def test_without_noise_every_step_comes_back_as_it_was(
    leaves: int, completion: bool, reduced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    Nodes(monkeypatch, noise=False)
    sums = integers(16)
    stream = TreeStream(leaves, 3, SOURCE, {}, reduced=reduced, completion=completion)
    for step in range(16):
        released = stream.release(step, sums[step].clone())
        torch.testing.assert_close(released, sums[step], rtol=0, atol=1e-12)


def test_a_tree_reduces_variance_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch)
    stream = TreeStream(4, 3, SOURCE, {})
    for step in range(6):
        stream.release(step, torch.zeros(3).double())
    assert len(nodes.released) == 4 + 2 + 1 + 2 + 1  # the first tree, and of the second two leaves


def test_options_of_a_tree_are_given_by_name() -> None:
    made: Any = TreeStream
    with pytest.raises(TypeError):
        made(4, 3, SOURCE, {}, True)
    assert made(leaves=4, size=3, source=SOURCE, memory={}, reduced=False).largest == 2.0**25


@pytest.mark.parametrize(
    ("leaves", "largest"), [(1, 2.0**27), (2, 2.0**26), (100, 2.0**20), (128, 2.0**20)]
)
def test_the_sum_of_a_whole_tree_is_exact_in_double_precision(leaves: int, largest: float) -> None:
    stream = TreeStream(leaves, 3, SOURCE, {})
    assert stream.largest == largest
    assert completed_size(leaves) * largest / 2.0**-24 <= 2.0**53
    assert BandedStream(3, 3, SOURCE, {}).largest == 2.0**16


@pytest.mark.parametrize("bands", [1, 2, 3, 16, 17, 33, 40])
def test_rows_are_noised_under_their_step_and_past_noise_is_taken_off(
    bands: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, nodes = 70, Nodes(monkeypatch)
    memory: Memory = {}
    stream = BandedStream(bands, 3, SOURCE, memory)
    c, sums = cut_coefficients(bands), integers(steps) / 64
    left: list[Tensor] = []
    for step in range(steps):
        kept = sums[step].clone()
        released = stream.release(step, kept)
        assert torch.equal(kept, sums[step])
        taken = sum((c[j] * left[step - j] for j in range(1, min(bands, step + 1))), torch.zeros(3))
        noised = nodes.released[f"banded noise {step}"]
        torch.testing.assert_close(noised, sums[step] - taken, rtol=0, atol=1e-9)
        left.append(released - sums[step])
    assert len(nodes.released) == steps
    kept_rows = memory["past"].shape[0] if bands > 1 else 0
    assert kept_rows == min(bands - 1, steps // 16 * 16)


@pytest.mark.parametrize(
    ("noise", "broken"), [(64.0, False), (-64.0, False), (64.5, True), (-64.5, True)]
)
def test_noise_that_no_working_machine_draws_stops_the_run(
    noise: float, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(correlated, "noised", lambda vector, *rest: vector + noise)
    stream, nothing = BandedStream(2, 3, SOURCE, {}), torch.zeros(3).double()
    if broken:
        with pytest.raises(RunError, match="something is broken"):
            stream.release(0, nothing)
    else:
        assert stream.release(0, nothing).tolist() == [noise] * 3


def test_coefficients_have_twelve_digits_and_are_never_rounded_up() -> None:
    exact = [math.comb(2 * j, j) / 4**j for j in range(50)]
    assert cut_coefficients(50).tolist() == [math.floor(each * 4096) / 4096 for each in exact]


def test_streams_of_a_resumed_run_do_not_start_a_new_block() -> None:
    nothing = torch.zeros(4).double()
    memory: Memory = {}
    first = BandedStream(3, 4, SOURCE, memory)
    rows = [first.release(step, nothing) for step in range(20)]
    again: Memory = {}
    second = BandedStream(3, 4, SOURCE, again)
    for step in range(18):
        second.release(step, nothing)
    third = BandedStream(3, 4, SOURCE, again)
    assert torch.equal(third.release(18, nothing), rows[18])
    assert torch.equal(third.release(19, nothing), rows[19])
