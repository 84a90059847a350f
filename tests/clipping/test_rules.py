"""Rules: bounds hold for all norms, nonsense is refused."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.clipping.contract import ClippedSum, Layout
from tacit.clipping.groups import Groups
from tacit.clipping.rules import Automatic, Flat, Layerwise, Multiplied
from tacit.clipping.thresholds import Thresholds
from tacit.errors import ArgumentError
from tacit.privacy.relations import Relation

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


TWO = Groups((("a",), ("b",)))
multipliers = st.floats(1e-3, 1e3)


@given(st.floats(1e-3, 1e3), multipliers, multipliers, st.floats(0, 1))
def test_multiplied_clipping_is_bounded_in_units_of_its_noise(
    clip: float, first: float, second: float, share: float
) -> None:
    """Noise on group h is in proportion to bounds[h], so Σ (move/bound)² must be at most one."""
    rule = Multiplied(TWO, clip, (first, second))
    long = 1e6 * clip
    norms = torch.tensor([[share * long / first, (1 - share) * long / second]]).double()
    bounds = torch.tensor(rule.bounds, dtype=torch.float64)
    units = (norms * rule.factors(norms) / bounds).norm()
    assert float(units) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("multiplier", [0.01, 0.5, 1.0, 20.0])
def test_a_multiplied_group_alone_reaches_its_bound_and_no_more(multiplier: float) -> None:
    rule = Multiplied(TWO, 0.7, (multiplier, 1.0))
    norms = torch.tensor([[1e9, 0.0]], dtype=torch.float64)
    assert float((norms * rule.factors(norms))[0, 0]) == pytest.approx(rule.bounds[0], rel=1e-12)


@given(st.lists(st.floats(0, 1e15, allow_nan=False), min_size=2, max_size=2))
def test_layerwise_norms_obey_each_bound(values: list[float]) -> None:
    rule = Layerwise(TWO, (0.3, 5.0))
    norms = torch.tensor([values], dtype=torch.float64)
    moved = norms * rule.factors(norms)
    assert bool((moved <= torch.tensor(rule.bounds).double() * (1 + 1e-12)).all())


@pytest.mark.parametrize(
    "shares", [(0.5, 0.51), (0.5, 0.5 + 1e-6), (0.5, 0.4), (1.0,), (0.2, 0.3, 0.5), (1.5, -0.5)]
)
def test_shares_that_do_not_divide_one_whole_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(ArgumentError, match="shares"):
        Layerwise(TWO, (1.0, 1.0), shares)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12))
def test_groups_together_cost_no_more_than_one_release(weights: list[float]) -> None:
    """The squares of 1/noise multiplier add up to that of the whole."""
    groups = Groups(tuple((f"layer {i}",) for i in range(len(weights))))
    names = [name for (name,) in groups.members]
    for given_weights in ((), tuple(weights)):
        rule = Thresholds("layerwise", groups, 1.0, weights=given_weights).rule(0)
        layout = Layout(tuple(names), (torch.Size([1]),) * len(names), tuple(range(len(names))))
        clipped = ClippedSum(torch.zeros(len(names)), layout, rule.bounds, rule.shares)
        scales = clipped.noise_scales(2.0, Relation.ADD_OR_REMOVE_ONE)
        cost = math.fsum((b / s) ** 2 for b, s in zip(rule.bounds, scales, strict=True))
        assert cost == pytest.approx(1 / 4, rel=1e-12)


def test_factors_by_the_definition() -> None:
    norms = torch.tensor([[0.0], [0.5], [2.0], [8.0]], dtype=torch.float64)
    assert Flat(2.0).factors(norms).flatten().tolist() == [1.0, 1.0, 1.0, 0.25]
    assert Automatic(2.0).factors(norms).flatten().tolist() == pytest.approx(
        [2 / 0.01, 2 / 0.51, 2 / 2.01, 2 / 8.01]
    )
    assert Automatic(2.0, stabiliser=0.0).factors(norms).flatten().tolist() == pytest.approx(
        [2e12, 4.0, 1.0, 0.25]
    )
    pairs = torch.tensor([[0.0, 9.0], [4.0, 1.0], [0.1, 30.0]], dtype=torch.float64)
    found = Layerwise(TWO, (2.0, 3.0)).factors(pairs)
    assert found.flatten().tolist() == pytest.approx([1.0, 1 / 3, 0.5, 1.0, 1.0, 0.1])
    found = Multiplied(TWO, 5.0, (1.0, 2.0)).factors(pairs)
    wholes = [18.0, math.hypot(4, 2), math.hypot(0.1, 60)]
    assert found.tolist() == [pytest.approx([min(1.0, 5 / whole)] * 2) for whole in wholes]
    assert Multiplied(TWO, 5.0, (1.0, 2.0)).bounds == (5.0, 2.5)


@pytest.mark.parametrize("rule", [Flat(1.0), Automatic(1.0, stabiliser=0.0)])
def test_single_precision_keeps_to_the_bound_for_the_shortest_gradients(rule: Flat) -> None:
    norms = torch.tensor([[0.0], [1e-38], [1e-31], [1e-13], [1e-12]])
    factors = rule.factors(norms)
    assert bool(torch.isfinite(factors).all())
    assert bool((norms * factors <= 1 + 1e-6).all())


def test_layers_of_nothing_are_left_alone() -> None:
    for rule in (Layerwise(TWO, (0.3, 5.0)), Multiplied(TWO, 0.3, (2.0, 3.0))):
        assert rule.factors(torch.zeros(1, 2)).tolist() == [[1.0, 1.0]]


def test_shares_and_bounds_are_those_that_the_noise_needs() -> None:
    """Each group of `Multiplied` is one part of a release of the whole; layers pay apart."""
    assert Flat(0.7).shares == Multiplied(TWO, 0.7, (1.0, 1.0)).shares[:1] == (1.0,)
    assert Multiplied(TWO, 0.7, (1.0, 1.0)).shares == (1.0, 1.0)
    assert Layerwise(TWO, (1.0, 1.0)).shares == (0.5, 0.5)
    assert Layerwise(TWO, (1.0, 2.0), (0.1, 0.9)).shares == (0.1, 0.9)
    assert Layerwise(TWO, (1.0, 2.0), (0.1, 0.9 - 5e-10)).bounds == (1.0, 2.0)


def test_every_parameter_is_in_its_group() -> None:
    names = ["b", "a"]
    assert list(Flat(1.0).grouping(names)) == list(Automatic(1.0).grouping(names)) == [0, 0]
    assert list(Layerwise(TWO, (1.0, 1.0)).grouping(names)) == [1, 0]
    assert list(Multiplied(TWO, 1.0, (1.0, 1.0)).grouping(names)) == [1, 0]


@pytest.mark.parametrize("shares", [(0.5, 0.5 + 2e-9), (0.0, 1.0), (0.5, 0.5, 0.0)])
def test_shares_that_are_nearly_right_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(ArgumentError, match="shares"):
        Layerwise(TWO, (1.0, 1.0), shares)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_impossible_values_of_any_group_are_refused(bad: float) -> None:
    with pytest.raises(ArgumentError, match="clip"):
        Layerwise(TWO, (1.0, bad))
    with pytest.raises(ArgumentError, match="clip"):
        Multiplied(TWO, bad, (1.0, 1.0))
    with pytest.raises(ArgumentError, match="multiplier"):
        Multiplied(TWO, 1.0, (1.0, bad))


@pytest.mark.parametrize("count", [1, 3])
def test_a_value_for_each_group_is_needed(count: int) -> None:
    with pytest.raises(ArgumentError, match=f"{count} values for 2 groups"):
        Layerwise(TWO, (1.0,) * count)
    with pytest.raises(ArgumentError, match=f"{count} values for 2 groups"):
        Multiplied(TWO, 1.0, (1.0,) * count)


@pytest.mark.parametrize("stabiliser", [math.inf, math.nan])
def test_a_stabiliser_without_meaning_is_refused(stabiliser: float) -> None:
    with pytest.raises(ArgumentError, match="stabiliser"):
        Automatic(1.0, stabiliser=stabiliser)


@pytest.mark.parametrize(
    "rule",
    [Flat(1.0), Automatic(1.0), Layerwise(TWO, (1.0, 2.0)), Multiplied(TWO, 1.0, (1.0, 2.0))],
    ids=lambda rule: type(rule).__name__,
)
def test_a_rule_in_force_cannot_be_changed(rule: Any) -> None:
    bounds = rule.bounds
    for name in ("clip", "bounds", "groups"):
        with pytest.raises(AttributeError):
            setattr(rule, name, 5.0)
    assert rule.bounds == bounds and len({rule, rule}) == 1


def test_hundreds_of_groups_are_as_good_as_two() -> None:
    groups = Groups(tuple((f"layer {i}",) for i in range(300)))
    assert len(Layerwise(groups, (1.0,) * 300).shares) == 300
    assert Layerwise(groups, (1.0,) * 300, (1 / 300,) * 300).bounds == (1.0,) * 300
    assert len(Multiplied(groups, 1.0, (2.0,) * 300).bounds) == 300
