"""Rules: bounds hold for all norms, nonsense is refused."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.clipping.rules import Automatic, Flat
from tacit.errors import ArgumentError

norms = st.lists(st.floats(0, 1e15, allow_nan=False), min_size=1, max_size=20)


@given(norms, st.floats(1e-6, 1e6))
def test_scaled_norms_obey_the_bound(values: list[float], clip: float) -> None:
    column = torch.tensor(values, dtype=torch.float64).unsqueeze(1)
    for rule in (Flat(clip), Automatic(clip)):
        assert rule.bounds == (clip,) and sum(rule.shares) == 1.0
        assert bool((column * rule.factors(column) <= clip * (1 + 1e-12)).all())


def test_short_gradients_are_left_alone_by_flat_clipping() -> None:
    assert Flat(1.0).factors(torch.tensor([[0.0], [0.3], [1.0]])).tolist() == [[1.0], [1.0], [1.0]]


@pytest.mark.parametrize("clip", [0.0, -1.0, math.inf, math.nan])
def test_impossible_clips_are_refused(clip: float) -> None:
    for rule in (Flat, Automatic):
        with pytest.raises(ArgumentError, match="clip"):
            rule(clip)


def test_a_negative_stabiliser_is_refused() -> None:
    with pytest.raises(ArgumentError, match="stabiliser"):
        Automatic(1.0, stabiliser=-0.1)


def test_a_bound_that_single_precision_cannot_tell_from_zero_leaves_nothing() -> None:
    factors = Flat(1e-300).factors(torch.tensor([[0.0], [1.0]]))
    assert factors.tolist() == [[0.0], [0.0]]
