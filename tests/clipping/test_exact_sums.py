"""Sums that are proven for the bits that are computed (docs/proofs/sums.md).

The central test changes one record in every way there is and finds everything that belongs to the
others unchanged, bit for bit, and the sum moved by exactly that record's own contributions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tacit import native
from tacit.clipping.contract import Batch, ClippingRule
from tacit.clipping.exact import engine as engine_module
from tacit.clipping.exact.bag_sums import squared_counts
from tacit.clipping.exact.engine import ExactEngine
from tacit.clipping.exact.grid import Grid, exponents_of, powers_of_two, truncated
from tacit.clipping.exact.stages.stage import NotRowwiseError
from tacit.clipping.exact.sums import ExactSum
from tacit.clipping.exact.uses import BagUse, LinearUse, Use
from tacit.clipping.fast import FastEngine
from tacit.clipping.groups import Groups
from tacit.clipping.rules import Automatic, Flat, Layerwise, Multiplied
from tacit.errors import NoProofError
from tacit.losses import cross_entropy
from tacit.models.networks import WordWeights

RECORDS, CLASSES, CHANGED = 11, 3, 4
NAN, INF = math.nan, math.inf

Kept = list[tuple[list[Use], Tensor]]


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


DENSE = (linear, without_bias, chain, mixed_chain, wide_chain)
TOKENS = (words, bag)


def batch_for(make: object) -> Batch:
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, CLASSES, (RECORDS,), generator=generator)
    if make in TOKENS:
        return torch.randint(0, 30, (RECORDS, 14), generator=generator), labels
    return 3 * torch.randn(RECORDS, 12, generator=generator), labels


def changes(make: object) -> dict[str, Tensor]:
    """What takes the place of one record's features."""
    if make in TOKENS:
        return {
            "blank": torch.zeros(14, dtype=torch.int64),
            "replaced": torch.arange(14) + 16,
            "one word": torch.full((14,), 7),
        }
    given = torch.linspace(-2, 5, 12)
    return {
        "blank": torch.zeros(12),
        "replaced": given,
        "not a number": given.clone().index_fill_(0, torch.tensor([5]), NAN),
        "infinite": given.clone().index_fill_(0, torch.tensor([0]), -INF),
        "huge": 3e38 * given.sign(),
        "large": 1e18 * given,
        "tiny": 1e-40 * given,
    }


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """What every record's gradients and factors are, micro-batch by micro-batch."""
    kept: Kept = []

    class Watched(ExactSum):
        def add(self, uses: list[Use]) -> Tensor:
            factors = super().add(uses)
            kept.append((list(uses), factors))
            return factors

    with monkeypatch.context() as patched:
        patched.setattr(engine_module, "ExactSum", Watched)
        yield kept


def rows_by_record(kept: Kept) -> list[list[bytes]]:
    """The bits of everything that belongs to a record, record by record."""
    found: list[list[bytes]] = []
    for uses, factors in kept:
        for r in range(len(factors)):
            bits = [factors[r].numpy().tobytes()]
            for use in uses:
                given = use.inputs if isinstance(use, LinearUse) else use.tokens
                bits += [given[r].numpy().tobytes(), use.outputs[r].numpy().tobytes()]
            found.append(bits)
    return found


def run(
    model: nn.Module,
    rule: ClippingRule,
    batch: Batch,
    micro_batch: int,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[list[Fraction], Kept]:
    """The computed sum as rational numbers, and what went into it."""
    torch.manual_seed(5)
    pieces = list(zip(*(part.split(micro_batch) for part in batch), strict=True))
    with watched(monkeypatch) as kept:
        engine = ExactEngine(model, rule, cross_entropy, RECORDS)
        total = engine.clipped_sum(cross_entropy, pieces, views=1).vector
    return [Fraction(value) for value in total.tolist()], kept


def contribution(model: nn.Module, rule: ClippingRule, kept: Kept, record: int) -> list[Fraction]:
    """What a record adds to the sum, by the definition in the proof, in rational numbers."""
    engine = ExactEngine(model, rule, cross_entropy, RECORDS)
    grid = Grid.of(rule.bounds, RECORDS)
    groups = dict(zip(engine.layout.names, engine.layout.groups, strict=True))
    found = {name: [Fraction(0)] * size for name, size in _sizes(engine)}
    for uses, factors in kept:
        if record >= len(factors):
            record -= len(factors)
            continue
        for use in uses:
            g = use.outputs[record].double()
            for name in _parameters(use):
                factor = float(factors[record, groups[name]])
                if factor == 0:
                    continue
                unit = Fraction(grid.unit(groups[name]))
                exponent = grid.exponents[groups[name]]
                if isinstance(use, LinearUse) and name == use.weight:
                    a = use.inputs[record].double()
                    e = int(exponents_of(a.square().sum().view(1)))
                    if e < -90:
                        continue
                    left, right = grid.split(len(a), len(g))
                    a_whole = [int(v * 2.0 ** (left - e)) for v in a.tolist()]
                    g_whole = [
                        int(v * (factor * 2.0 ** (e + right - exponent))) for v in g.tolist()
                    ]
                    found[name] = [unit * p * q for p in g_whole for q in a_whole]
                    continue
                whole = [unit * int(v * (factor / float(unit))) for v in g.tolist()]
                if isinstance(use, LinearUse):
                    found[name] = whole
                    continue
                table = [Fraction(0)] * len(found[name])
                for token in use.tokens[record].tolist():
                    for i, value in enumerate(whole if token != use.padding else ()):
                        table[token * len(whole) + i] += value
                found[name] = table
        break
    return [value for name, _ in _sizes(engine) for value in found[name]]


def _sizes(engine: ExactEngine) -> list[tuple[str, int]]:
    return list(zip(engine.layout.names, engine.layout.sizes, strict=True))


def _parameters(use: Use) -> list[str]:
    if isinstance(use, BagUse):
        return [use.table]
    return [name for name in (use.weight, use.bias) if name is not None]


def assert_within_bounds(contributed: list[Fraction], engine: ExactEngine) -> None:
    """Σ shares·(‖group‖/bound)² ≤ 1, in rational numbers."""
    squares = [Fraction(0)] * len(engine.rule.bounds)
    start = 0
    for end, group in zip(engine.layout.ends, engine.layout.groups, strict=True):
        squares[group] += sum((v * v for v in contributed[start:end]), Fraction(0))
        start = end
    spent = Fraction(0)
    for square, bound, share in zip(squares, engine.rule.bounds, engine.rule.shares, strict=True):
        assert square <= Fraction(bound) ** 2
        spent += Fraction(share) * square / Fraction(bound) ** 2
    assert spent <= Fraction(1) + Fraction(1, 10**9)  # shares are floats that add up to one


@contextmanager
def thread_count(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("levels", [0, 1, 3])
@pytest.mark.parametrize("make", [*DENSE, *TOKENS])
def test_a_changed_record_moves_the_sum_by_its_own_contributions_alone(
    make: object, levels: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(make)
    torch.manual_seed(1)
    model, rule, batch = make(), Flat(0.7), batch_for(make)
    with native.limited_to(levels), thread_count(threads):
        for micro_batch in (RECORDS, 4):
            total, kept = run(model, rule, batch, micro_batch, monkeypatch)
            before = rows_by_record(kept)
            own = contribution(model, rule, kept, CHANGED)
            engine = ExactEngine(model, rule, cross_entropy, RECORDS)
            assert_within_bounds(own, engine)
            assert any(own)
            for name, features in changes(make).items():
                neighbour = (batch[0].clone(), batch[1].clone())
                neighbour[0][CHANGED] = features
                moved, kept_then = run(model, rule, neighbour, micro_batch, monkeypatch)
                after = rows_by_record(kept_then)
                others = [r for r in range(RECORDS) if r != CHANGED]
                assert [after[r] for r in others] == [before[r] for r in others], name
                then = contribution(model, rule, kept_then, CHANGED)
                assert_within_bounds(then, engine)
                expected = [s - a + b for s, a, b in zip(total, own, then, strict=True)]
                assert moved == expected, name


@pytest.mark.parametrize("make", [linear, chain, words])
def test_the_sum_is_the_rational_sum_of_all_contributions(
    make: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(make)
    model, rule, batch = make(), Flat(0.7), batch_for(make)
    total, kept = run(model, rule, batch, RECORDS, monkeypatch)
    each = [contribution(model, rule, kept, r) for r in range(RECORDS)]
    assert total == [sum(column, Fraction(0)) for column in zip(*each, strict=True)]


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
    features, labels = batch_for(linear)
    features = features * torch.logspace(-12, 12, RECORDS)[:, None]
    with native.limited_to(levels):
        total, kept = run(model, rule, (features, labels), RECORDS, monkeypatch)
        engine = ExactEngine(model, rule, cross_entropy, RECORDS)
        each = [contribution(model, rule, kept, r) for r in range(RECORDS)]
    for contributed in each:
        assert_within_bounds(contributed, engine)
    assert total == [sum(column, Fraction(0)) for column in zip(*each, strict=True)]


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


@pytest.mark.parametrize("make", [*DENSE[:3], wide_chain, *TOKENS])
@pytest.mark.parametrize("clip", [0.01, 1.0, 100.0])
def test_sums_agree_with_the_fast_engine(make: object, clip: float) -> None:
    assert callable(make)
    torch.manual_seed(2)
    model, batch = make(), batch_for(make)
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
        (nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), "1", "LayerNorm"),
        (nn.Sequential(nn.Sequential(nn.Conv1d(1, 1, 1))), "0.0", "Conv1d"),
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
    with pytest.raises(NotRowwiseError, match="3 dimensions"):
        engine.check(torch.zeros(1, 5, 3))
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
