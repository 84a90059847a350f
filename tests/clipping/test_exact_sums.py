"""Sums that are proven for the bits that are computed (docs/proofs/sums.md).

The central test changes one record in every way there is and finds everything that belongs to the
others unchanged, bit for bit, and the sum moved by exactly that record's own contributions.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from changed_records import (
    CLASSES,
    INF,
    NAN,
    RECORDS,
    Case,
    assert_only_own_contributions_move,
    assert_sum_of_contributions,
    thread_count,
)
from torch import nn

from tacit import native
from tacit.clipping.contract import ClippingRule
from tacit.clipping.exact.bag_sums import squared_counts
from tacit.clipping.exact.engine import ExactEngine
from tacit.clipping.exact.grid import Grid, exponents_of, powers_of_two, truncated
from tacit.clipping.exact.stages.stage import NotRowwiseError
from tacit.clipping.fast import FastEngine
from tacit.clipping.groups import Groups
from tacit.clipping.rules import Automatic, Flat, Layerwise, Multiplied
from tacit.errors import NoProofError
from tacit.losses import cross_entropy
from tacit.models.networks import WordWeights


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, CLASSES))


def without_bias() -> nn.Module:
    return nn.Linear(12, CLASSES, bias=False)


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 20), nn.Linear(20, CLASSES))


def mixed_chain() -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, 9),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(9, 7),
        nn.Tanh(),
        nn.Linear(7, CLASSES),
    )


def wide_chain() -> nn.Module:
    """Wide enough for the kernels of linear layers, there and back."""
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 300), nn.ReLU(), nn.Linear(300, CLASSES))


def words() -> nn.Module:
    model = WordWeights(30, CLASSES)
    nn.init.normal_(model.embedding.weight)
    return model


def bag() -> nn.Module:
    return nn.Sequential(
        nn.EmbeddingBag(30, 8, mode="mean", padding_idx=0), nn.GELU(), nn.Linear(8, CLASSES)
    )


LINEAR, CHAIN, WORDS = Case(linear), Case(chain), Case(words, (14,), tokens=True)
WIDE_CHAIN, BAG = Case(wide_chain), Case(bag, (14,), tokens=True)
CASES = (LINEAR, Case(without_bias), CHAIN, Case(mixed_chain), WIDE_CHAIN, WORDS, BAG)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("levels", [0, 1, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_changed_record_moves_the_sum_by_its_own_contributions_alone(
    case: Case, levels: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with native.limited_to(levels), thread_count(threads):
        for micro_batch in (RECORDS, 4):
            assert_only_own_contributions_move(case, Flat(0.7), micro_batch, monkeypatch)


@pytest.mark.parametrize("case", [LINEAR, CHAIN, WORDS], ids=str)
def test_the_sum_is_the_rational_sum_of_all_contributions(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_sum_of_contributions(case.make(), Flat(0.7), case.batch(), monkeypatch)


@pytest.mark.parametrize(
    "rule",
    [
        Flat(1e-3),
        Flat(50.0),
        Automatic(1.3),
        Automatic(0.5, stabiliser=0.0),
        Layerwise(Groups((("0.weight", "0.bias"), ("2.weight",), ("2.bias",))), (0.2, 1.5, 0.01)),
        Multiplied(Groups((("0.weight", "0.bias"), ("2.weight", "2.bias"))), 0.9, (3.0, 0.4)),
    ],
    ids=lambda rule: f"{type(rule).__name__} {rule.bounds}",
)
@pytest.mark.parametrize("levels", [0, 3])
def test_every_rule_bounds_every_contribution(
    rule: ClippingRule, levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, CLASSES))
    features, labels = LINEAR.batch()
    features = features * torch.logspace(-12, 12, RECORDS)[:, None]
    with native.limited_to(levels):
        assert_sum_of_contributions(model, rule, (features, labels), monkeypatch)


def test_sums_do_not_depend_on_order_threads_or_micro_batches() -> None:
    torch.manual_seed(0)
    model, rows = nn.Linear(700, 10), 300
    features, labels = torch.randn(rows, 700), torch.randint(0, 10, (rows,))
    engine = ExactEngine(model, Flat(1.0), cross_entropy, rows)
    order = torch.randperm(rows)
    whole = engine.clipped_sum(cross_entropy, [(features, labels)], 1).vector
    for threads in (1, 2, 5):
        for size in (300, 128, 7):
            pieces = zip(features[order].split(size), labels[order].split(size), strict=True)
            with thread_count(threads):
                again = engine.clipped_sum(cross_entropy, list(pieces), 1).vector
            assert torch.equal(whole, again)


@pytest.mark.parametrize("case", [*CASES[:3], WIDE_CHAIN, WORDS, BAG], ids=str)
@pytest.mark.parametrize("clip", [0.01, 1.0, 100.0])
def test_sums_agree_with_the_fast_engine(case: Case, clip: float) -> None:
    torch.manual_seed(2)
    model, batch = case.make(), case.batch()
    exact = ExactEngine(model, Flat(clip), cross_entropy, RECORDS)
    fast = FastEngine(model, Flat(clip), deterministic=True)
    found = exact.clipped_sum(cross_entropy, [batch], 1).vector
    expected = fast.clipped_sum(cross_entropy, [batch], 1).vector.double()
    assert (found - expected).norm() < 1e-4 * expected.norm()


def test_removing_a_record_from_a_float32_sum_moves_it_by_more_than_its_norm() -> None:
    """The order and rounding of sums, after Casacuberta et al. (2022): a record of norm one moves
    a float32 sum by up to 1.005, and the exact sum by at most one."""
    rows = 100_000
    features = torch.full((rows, 1), 1.0)
    labels = torch.zeros(rows, dtype=torch.int64)
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)
    clipped = np.full((rows, 2), math.sqrt(0.5), np.float32) * np.array([-1, 1], np.float32)
    rounded = np.cumsum(clipped, 0, dtype=np.float32).astype(np.float64)
    assert max(np.linalg.norm(rounded[n] - rounded[n - 1]) for n in range(60_000, rows)) > 1.004
    engine = ExactEngine(model, Automatic(1.0, stabiliser=0.0), cross_entropy, rows)
    sums = [
        engine.clipped_sum(cross_entropy, [(features[:n], labels[:n])], 1).vector.tolist()
        for n in (rows - 1, rows)
    ]
    moved = [Fraction(b) - Fraction(a) for a, b in zip(*sums, strict=True)]
    square = sum((m * m for m in moved), Fraction(0))
    assert Fraction(999, 1000) < square <= 1


def test_a_grid_holds_the_largest_sum_and_not_much_more() -> None:
    for records in (1, 2, 3, 1000, 60_000, 65_536, 65_537, 1 << 26):
        grid = Grid.of((0.9, 1.0, 3.0), records)
        assert records << grid.bits <= 1 << 53
        assert grid.bits == 48 or (records << (grid.bits + 1)) > 1 << 53
        for exponent, bound in zip(grid.exponents, (0.9, 1.0, 3.0), strict=True):
            assert bound <= 2.0**exponent <= 2 * bound
    assert Grid.of((1.0,), 1000).split(784, 10)[0] > Grid.of((1.0,), 1000).split(10, 784)[0]


def test_exponents_cover_rounded_norms() -> None:
    norms = torch.tensor([1.0, 1 - 1e-12, 1 + 1e-12, 2.0, 3.9, 1e-30, 1e30], dtype=torch.float64)
    powers = powers_of_two(exponents_of(norms.square()))
    assert (norms * (1 + 1e-7) <= powers).all() and (powers < 3 * norms).all()
    assert int(exponents_of(torch.zeros(1, dtype=torch.float64))) < -90


def test_truncation_never_lengthens_and_silences_what_has_no_factor() -> None:
    rows = torch.tensor([[1.5, -2.5, 0.4], [NAN, INF, -INF], [7.9, -7.9, 1e-30]])
    found = truncated(rows, torch.tensor([2.0, 0.0, 1.0], dtype=torch.float64))
    assert found.tolist() == [[3.0, -5.0, 0.0], [0.0, 0.0, 0.0], [7.0, -7.0, 0.0]]


@pytest.mark.parametrize("levels", [0, 3])
@pytest.mark.parametrize("padding", [None, 0])
def test_counts_of_tokens_are_exact(levels: int, padding: int | None) -> None:
    tokens = torch.tensor([[0, 0, 0, 0], [1, 2, 3, 0], [2, 2, 1, 2]])
    with native.limited_to(levels):
        found = squared_counts(tokens, padding, 4)
    assert found.tolist() == ([0, 3, 10] if padding == 0 else [16, 4, 10])


def test_layers_without_a_proof_are_named() -> None:
    tied = nn.Linear(3, 3)
    hooked = nn.Linear(3, 3)
    hooked.register_forward_hook(lambda module, given, output: output)
    for model, layer, reason in (
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), "1", "BatchNorm1d"),
        (nn.Sequential(nn.Sequential(nn.Conv3d(1, 1, 1))), "0.0", "Conv3d"),
        (nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)), "1", "BatchNorm2d"),
        (nn.Sequential(nn.Flatten(), nn.LSTM(3, 3)), "1", "LSTM"),
        (nn.MultiheadAttention(4, 2), "", "MultiheadAttention"),
        (nn.Sequential(nn.MaxPool2d(2, return_indices=True), nn.Linear(3, 3)), "0", "MaxPool2d"),
        (nn.InstanceNorm2d(3, affine=True, track_running_stats=True), "", "InstanceNorm2d"),
        (nn.Sequential(tied, tied), "1", "twice"),
        (nn.Sequential(nn.Linear(3, 3), nn.ReLU(), tied, nn.Tanh(), hooked), "4", "hooks"),
        (nn.Sequential(nn.Flatten(0), nn.Linear(3, 3)), "0", "Flatten"),
        (nn.Linear(3, 3).double(), "weight", "float32"),
    ):
        with pytest.raises(NotRowwiseError, match=reason) as caught:
            ExactEngine(model, Flat(1.0), cross_entropy, 10)
        assert caught.value.layer == layer


def test_records_of_other_shapes_are_refused() -> None:
    engine = ExactEngine(nn.Linear(3, 3), Flat(1.0), cross_entropy, 10)
    engine.check(torch.zeros(1, 3))
    with pytest.raises(NotRowwiseError, match="scores have 3 dimensions"):
        engine.check(torch.zeros(1, 5, 3))
    with pytest.raises(NotRowwiseError, match="1 dimensions"):
        engine.check(torch.zeros(3))
    engine = ExactEngine(words(), Flat(1.0), cross_entropy, 10)
    with pytest.raises(NotRowwiseError, match="tokens"):
        engine.check(torch.zeros(1, 3, dtype=torch.int32))


def test_what_the_proof_does_not_cover_is_refused() -> None:
    engine = ExactEngine(nn.Linear(3, 2), Flat(1.0), cross_entropy, 4)
    batch = (torch.ones(5, 3), torch.zeros(5, dtype=torch.int64))
    few = tuple(part[:4] for part in batch)
    with pytest.raises(NoProofError, match="loss"):
        engine.clipped_sum(lambda model, batch: cross_entropy(model, batch), [few], 1)
    with pytest.raises(NoProofError, match="views is 2"):
        engine.clipped_sum(cross_entropy, [few], 2)
    with pytest.raises(NoProofError, match="more rows"):
        engine.clipped_sum(cross_entropy, [batch], 1)
    assert engine.clipped_sum(cross_entropy, [], 1).vector.count_nonzero() == 0
