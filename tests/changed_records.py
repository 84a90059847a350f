"""Exact sums of a few records, one of which is changed, against the definition of their sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from tacit.clipping.contract import Batch, ClippingRule
from tacit.clipping.exact import engine as engine_module
from tacit.clipping.exact.engine import ExactEngine
from tacit.clipping.exact.grid import Grid, exponents_of
from tacit.clipping.exact.sums import ExactSum
from tacit.clipping.exact.uses import BagUse, DenseUse, LinearUse, Use
from tacit.losses import cross_entropy

RECORDS, CLASSES, CHANGED = 11, 3, 4
NAN, INF = math.nan, math.inf


@dataclass(frozen=True)
class Case:
    """A model, and the shape of its records: numbers, or tokens below 30."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (12,)
    tokens: bool = False

    def __str__(self) -> str:
        return self.make.__name__

    def batch(self) -> Batch:
        """All records."""
        generator = torch.Generator().manual_seed(3)
        labels = torch.randint(0, CLASSES, (RECORDS,), generator=generator)
        shape = (RECORDS, *self.shape)
        if self.tokens:
            return torch.randint(0, 30, shape, generator=generator), labels
        return 3 * torch.randn(shape, generator=generator), labels

    def changes(self) -> dict[str, Tensor]:
        """What takes the place of one record's features."""
        size = math.prod(self.shape)
        if self.tokens:
            return {
                "blank": torch.zeros(size, dtype=torch.int64),
                "replaced": torch.arange(size) + 16,
                "one word": torch.full((size,), 7),
            }
        given = torch.linspace(-2, 5, size)
        found = {
            "blank": torch.zeros(size),
            "replaced": given,
            "not a number": given.clone().index_fill_(0, torch.tensor([5]), NAN),
            "infinite": given.clone().index_fill_(0, torch.tensor([0]), -INF),
            "huge": 3e38 * given.sign(),
            "large": 1e18 * given,
            "tiny": 1e-40 * given,
        }
        return {name: features.view(self.shape) for name, features in found.items()}


@dataclass(frozen=True)
class Piece:
    """What a micro-batch's records are given, as one use of parameters after the other."""

    uses: list[Use]
    gradients: list[Tensor | None]
    """Materialised gradients [records, ...] of dense uses, in the shape of the parameter."""
    factors: Tensor


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Piece]]:
    """What every record's gradients and factors are, micro-batch by micro-batch."""
    kept: list[Piece] = []

    class Watched(ExactSum):
        def add(self, uses: list[Use]) -> Tensor:
            gradients = [materialised(use) if isinstance(use, DenseUse) else None for use in uses]
            factors = super().add(uses)
            kept.append(Piece(list(uses), gradients, factors))
            return factors

    with monkeypatch.context() as patched:
        patched.setattr(engine_module, "ExactSum", Watched)
        yield kept


def materialised(use: DenseUse) -> Tensor:
    """All records' gradients, [records, *parameter]."""
    rows = torch.cat([use.compute(block).clone() for block in use.blocks])
    permuted = (0, *(dim + 1 for dim in use.order))
    return rows.view(-1, *use.shape).permute(permuted).contiguous()


def rows_by_record(kept: list[Piece]) -> list[list[bytes]]:
    """The bits of everything that belongs to a record, record by record."""
    found: list[list[bytes]] = []
    for piece in kept:
        given = [piece.factors]
        for use, gradients in zip(piece.uses, piece.gradients, strict=True):
            if gradients is not None:
                given.append(gradients)
            elif isinstance(use, LinearUse):
                given += [use.inputs, use.outputs]
            elif isinstance(use, BagUse):
                given += [use.tokens, use.outputs]
        for r in range(len(piece.factors)):
            found.append([each[r].numpy().tobytes() for each in given])
    return found


def run(
    model: nn.Module,
    rule: ClippingRule,
    batch: Batch,
    micro_batch: int,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[list[Fraction], list[Piece]]:
    """The computed sum as rational numbers, and what went into it."""
    torch.manual_seed(5)
    pieces = list(zip(*(part.split(micro_batch) for part in batch), strict=True))
    with watched(monkeypatch) as kept:
        engine = ExactEngine(model, rule, cross_entropy, RECORDS)
        total = engine.clipped_sum(cross_entropy, pieces, views=1).vector
    return [Fraction(value) for value in total.tolist()], kept


def contribution(
    engine: ExactEngine, rule: ClippingRule, kept: list[Piece], record: int
) -> list[Fraction]:
    """What a record adds to the sum, by the definition in the proof, in rational numbers."""
    grid = Grid.of(rule.bounds, RECORDS)
    sizes = list(zip(engine.layout.names, engine.layout.sizes, strict=True))
    groups = dict(zip(engine.layout.names, engine.layout.groups, strict=True))
    found = {name: [Fraction(0)] * size for name, size in sizes}
    for piece in kept:
        if record >= len(piece.factors):
            record -= len(piece.factors)
            continue
        for use, gradients in zip(piece.uses, piece.gradients, strict=True):
            for name in _parameters(use):
                factor, group = float(piece.factors[record, groups[name]]), groups[name]
                if factor == 0:
                    continue
                if gradients is not None:
                    found[name] = whole_units(gradients[record].flatten(), factor, grid, group)
                elif isinstance(use, LinearUse) and name == use.weight:
                    found[name] = _products(use, record, factor, grid, group) or found[name]
                else:
                    assert not isinstance(use, DenseUse)
                    whole = whole_units(use.outputs[record], factor, grid, group)
                    is_bag = isinstance(use, BagUse)
                    found[name] = _table(use, record, whole, len(found[name])) if is_bag else whole
        break
    return [value for name, _ in sizes for value in found[name]]


def whole_units(gradient: Tensor, factor: float, grid: Grid, group: int) -> list[Fraction]:
    """unit · trunc(gradient · factor / unit)."""
    unit = grid.unit(group)
    return [Fraction(unit) * int(v * (factor / unit)) for v in gradient.double().tolist()]


def _products(
    use: LinearUse, record: int, factor: float, grid: Grid, group: int
) -> list[Fraction] | None:
    a, g = use.inputs[record].double(), use.outputs[record].double()
    e = int(exponents_of(a.square().sum().view(1)))
    if e < -90:
        return None
    left, right = grid.split(len(a), len(g))
    scale = factor * 2.0 ** (e + right - grid.exponents[group])
    a_whole = [int(v * 2.0 ** (left - e)) for v in a.tolist()]
    g_whole = [int(v * scale) for v in g.tolist()]
    return [Fraction(grid.unit(group)) * p * q for p in g_whole for q in a_whole]


def _table(use: BagUse, record: int, whole: list[Fraction], size: int) -> list[Fraction]:
    table = [Fraction(0)] * size
    for token in use.tokens[record].tolist():
        for i, value in enumerate(whole if token != use.padding else ()):
            table[token * len(whole) + i] += value
    return table


def _parameters(use: Use) -> list[str]:
    if isinstance(use, DenseUse):
        return [use.parameter]
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


def assert_only_own_contributions_move(
    case: Case, rule: ClippingRule, micro_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change one record in every way there is: all that belongs to the others keeps its bits, and
    the sum moves by exactly that record's own contributions."""
    torch.manual_seed(1)
    model, batch = case.make(), case.batch()
    total, kept = run(model, rule, batch, micro_batch, monkeypatch)
    before = rows_by_record(kept)
    engine = ExactEngine(model, rule, cross_entropy, RECORDS)
    own = contribution(engine, rule, kept, CHANGED)
    assert_within_bounds(own, engine)
    assert any(own)
    for name, features in case.changes().items():
        neighbour = (batch[0].clone(), batch[1].clone())
        neighbour[0][CHANGED] = features
        moved, kept_then = run(model, rule, neighbour, micro_batch, monkeypatch)
        after = rows_by_record(kept_then)
        others = [r for r in range(RECORDS) if r != CHANGED]
        assert [after[r] for r in others] == [before[r] for r in others], name
        then = contribution(engine, rule, kept_then, CHANGED)
        assert_within_bounds(then, engine)
        assert moved == [s - a + b for s, a, b in zip(total, own, then, strict=True)], name


def assert_sum_of_contributions(
    model: nn.Module, rule: ClippingRule, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum is the rational sum of all records' contributions, each within its bounds."""
    total, kept = run(model, rule, batch, RECORDS, monkeypatch)
    engine = ExactEngine(model, rule, cross_entropy, RECORDS)
    each = [contribution(engine, rule, kept, r) for r in range(RECORDS)]
    for contributed in each:
        assert_within_bounds(contributed, engine)
    assert total == [sum(column, Fraction(0)) for column in zip(*each, strict=True)]


@contextmanager
def thread_count(count: int) -> Iterator[None]:
    """Run torch and the kernels on so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
