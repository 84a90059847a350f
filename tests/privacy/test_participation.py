"""Sensitivities from the order of batches, against counting by hand."""

from itertools import chain, combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import ArgumentError
from tacit.privacy.factors import square_root_coefficients
from tacit.privacy.fixed_order import bands_for
from tacit.privacy.participation import (
    Order,
    banded_growth,
    same_order,
    separation,
    tree_growth,
    tree_worst_case,
)

orders = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), min_size=1, max_size=5)


def nodes(leaves: int) -> list[range]:
    """Every complete node of a tree over so many leaves."""
    widths = [2**level for level in range(leaves.bit_length())]
    return [range(s, s + w) for w in widths for s in range(0, leaves - w + 1, w)]


def counted(order: Order, restart: int, completion: bool) -> float:
    """Σ count² of the worst batch, tree by tree, node by node."""
    each = restart or len(order)
    trees = [list(chain(*order[i : i + each])) for i in range(0, len(order), each)]
    best = 0
    for batch in {b for epoch in order for b in epoch}:
        total = 0
        for number, leaves in enumerate(trees):
            size = len(leaves)
            if completion and number + 1 < len(trees):
                size = 1 << (size - 1).bit_length()
            padded = [*leaves, *[None] * size]
            total += sum(sum(padded[i] == batch for i in node) ** 2 for node in nodes(size))
        best = max(best, total)
    return float(best)


@pytest.mark.parametrize(
    ("batches", "epochs", "squared"), [(120, 1, 7), (120, 2, 18), (120, 10, 225)]
)
def test_published_trees(batches: int, epochs: int, squared: int) -> None:
    assert tree_growth(same_order(batches, batches * epochs))[-1] == squared


def test_restarts_with_completion_lower_it_and_any_order_raises_it() -> None:
    order = same_order(120, 1200)
    assert tree_growth(order, 1, True)[-1] == 79
    assert tree_growth(order, 1)[-1] == 70
    assert tree_worst_case(120, 1200) == 255


@given(orders, st.integers(0, 3), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_order_of_unequal_epochs_is_counted_right(
    order: list[list[int]], restart: int, completion: bool
) -> None:
    grown = tree_growth(order, restart, completion)
    assert grown[-1] == counted(order, restart, completion)
    assert len(grown) == sum(map(len, order)) and (np.diff(grown) >= 0).all()


def test_after_each_step_it_is_that_of_the_steps_so_far() -> None:
    order = same_order(5, 23)
    grown = tree_growth(order)
    assert [grown[t - 1] for t in range(1, 24)] == [
        counted(same_order(5, t), 0, False) for t in range(1, 24)
    ]


@pytest.mark.parametrize("batches", [1, 2, 3, 5])
@pytest.mark.parametrize("steps", [1, 4, 7, 11, 13])
def test_the_worst_order_is_the_worst_of_all(batches: int, steps: int) -> None:
    epochs = [range(s, min(s + batches, steps)) for s in range(0, steps, batches)]
    brute = max(
        sum(sum(place in node for place in places) ** 2 for node in nodes(steps))
        for places in product(*epochs)
    )
    assert tree_worst_case(batches, steps) == brute


in_turn = st.builds(same_order, st.integers(1, 8), st.integers(1, 30))


@given(orders | in_turn, st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_banded_sensitivity_is_the_norm_of_the_summed_columns(
    order: list[list[int]], bands: int
) -> None:
    c = square_root_coefficients(bands)
    batches = list(chain(*order))
    steps = len(batches)
    factor = sum(np.diag(np.full(steps - j, c[j]), -j) for j in range(min(bands, steps)))
    moved = np.array(
        [
            np.cumsum(factor[:, [i for i in range(steps) if batches[i] == b]].sum(1) ** 2)
            for b in set(batches)
        ]
    )
    np.testing.assert_allclose(banded_growth(order, c), moved.max(0), rtol=1e-12)


def test_published_banded_sensitivity() -> None:
    c = square_root_coefficients(120)
    assert np.sqrt(banded_growth(same_order(120, 1200), c)[-1]) == pytest.approx(5.0887, abs=5e-5)


@given(orders)
@settings(max_examples=100, deadline=None)
def test_separation_is_the_smallest_gap(order: list[list[int]]) -> None:
    flat = list(chain(*order))
    gaps = [j - i for i, j in combinations(range(len(flat)), 2) if flat[i] == flat[j]]
    assert separation(order) == min(gaps, default=len(flat))


def test_bands_of_an_order_of_ones_own_stay_within_its_separation() -> None:
    backwards = [list(range(20)), list(range(20))[::-1], list(range(20))]
    assert bands_for(backwards) == separation(backwards) == 1
    apart = [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]
    assert 1 < bands_for(apart) <= separation(apart) == 5


def test_what_has_no_proof_is_refused() -> None:
    with pytest.raises(ArgumentError, match="negative"):
        banded_growth(same_order(2, 4), np.array([1.0, -0.5]))
    with pytest.raises(ArgumentError, match="restart_every is -1"):
        tree_growth(same_order(2, 4), -1)
