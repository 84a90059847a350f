"""What an elementary event costs under each relation: which proof, which pair, which divergence."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest

from tacit.errors import NoProofError
from tacit.privacy import elementary, events, rdp
from tacit.privacy.bits import Both, CoinPair
from tacit.privacy.gaussian_pair import GaussianPair
from tacit.privacy.relations import PUBLIC_LABELS, Relation
from tacit.privacy.selection import RunCount, best_of
from tacit.privacy.subsets import SubsetPair
from tacit.privacy.thinning import AcceptanceTest, bit_divergences
from tacit.privacy.visible import OrNothing

ADD, ZERO, REPLACE, FEATURES = Relation
PLAIN, BOUNDED = events.gaussian(4.0), events.bounded_gaussian(4.0)
SAMPLED = events.poisson(0.25, PLAIN)
VISIBLE = events.visible(0.5, PLAIN)
SUBSET = events.subset(3, 12, BOUNDED)
ORDERED = events.fixed_order(SAMPLED)
TEST = AcceptanceTest(0.25, -1.0, -0.3, 0.5)
THINNED = events.thinned(SAMPLED, TEST, 0.5)
ADAPTIVE = events.adaptive(SAMPLED, 3.0)
FILTER = events.filtered(3.0, 0.75)
LAW = RunCount(3.0, 1.0)
BEST = best_of([events.repeated(SAMPLED, 5)], LAW)
ORDERS = (1.5, 2.0, 16.0)


@pytest.mark.parametrize(
    ("event", "covered"),
    [
        (PLAIN, {ADD, ZERO, REPLACE, FEATURES}),
        (SAMPLED, {ADD, ZERO, REPLACE, FEATURES}),
        (BOUNDED, {ADD, ZERO, REPLACE, FEATURES}),
        (THINNED, {ADD, ZERO, REPLACE, FEATURES}),
        (VISIBLE, {ZERO, FEATURES}),
        (SUBSET, {ZERO, REPLACE, FEATURES}),
        (ORDERED, {ZERO, REPLACE, FEATURES}),
        (ADAPTIVE, {ADD, ZERO}),
        (FILTER, {ADD, ZERO}),
        (BEST, {ADD, ZERO}),
        (best_of([PLAIN], LAW), {ADD, ZERO, REPLACE, FEATURES}),
        (best_of([PLAIN, VISIBLE], LAW), {ZERO, FEATURES}),
        (best_of([ORDERED], LAW), {ZERO}),
        (best_of([events.fixed_order(PLAIN)], LAW), {ZERO, REPLACE, FEATURES}),
        (best_of([ADAPTIVE], LAW), set()),
        (best_of([FILTER, PLAIN], LAW), set()),
        (best_of([dpa.NonPrivateDpEvent()], LAW), set()),
    ],
)
def test_relations_that_have_a_proof(event: dpa.DpEvent, covered: set[Relation]) -> None:
    assert set(elementary.relations_of(event)) == covered


def test_kinds_of_events_are_found_inside_compositions() -> None:
    inside = events.composed([PLAIN, events.repeated(events.composed([ADAPTIVE]), 2)])
    assert elementary.is_adaptive(inside) and elementary.is_adaptive(FILTER)
    assert not elementary.is_adaptive(events.composed([PLAIN, SAMPLED]))
    assert elementary.is_selected(events.composed([PLAIN, BEST]))
    assert not elementary.is_selected(inside)


def test_leaves_are_counted_without_their_order() -> None:
    event = events.composed([ORDERED, events.repeated(SAMPLED, 3), PLAIN])
    assert dict(elementary.leaves_of(event)) == {SAMPLED: 4, PLAIN: 1}
    assert elementary.leaves_of(event) == elementary.leaves_of(
        events.composed([PLAIN, SAMPLED, events.repeated(ORDERED, 3)])
    )


@pytest.mark.parametrize("relation", list(Relation))
def test_a_record_moves_a_sum_twice_as_far_where_another_takes_its_place(
    relation: Relation,
) -> None:
    times = 2 if relation in (REPLACE, FEATURES) else 1
    assert elementary.mu_of(PLAIN, relation) == times / 4
    assert elementary.mu_of(BOUNDED, relation) == 1 / 4
    assert elementary.mu_of(events.visible(1.0, PLAIN), relation) == times / 4
    for event in (SAMPLED, VISIBLE, SUBSET, THINNED, dpa.NoOpDpEvent()):
        assert elementary.mu_of(event, relation) is None


def test_leaves_of_equal_count_have_one_order() -> None:
    first, second = (events.composed(each) for each in ([PLAIN, SAMPLED], [SAMPLED, PLAIN]))
    assert elementary.leaves_of(first) == elementary.leaves_of(second)


def test_noise_need_not_be_a_whole_number() -> None:
    event = events.gaussian(0.7)
    assert elementary.pairs_of(event, ADD) == (
        GaussianPair(pytest.approx(0.7), 1.0, 0.0),
        GaussianPair(pytest.approx(0.7), 0.0, 1.0),
    )
    assert elementary.pairs_of(event, REPLACE)[0].sigma == pytest.approx(0.35)
    found = elementary.divergences_of(event, ADD, ORDERS)
    assert found.tolist() == pytest.approx([order / (2 * 0.49) for order in ORDERS])


@pytest.mark.parametrize("relation", [ADD, ZERO])
def test_pairs_of_both_directions(relation: Relation) -> None:
    assert elementary.pairs_of(PLAIN, relation) == (
        GaussianPair(4.0, 1.0, 0.0),
        GaussianPair(4.0, 0.0, 1.0),
    )
    both = GaussianPair(4.0, 0.25, 0.0), GaussianPair(4.0, 0.0, 0.25)
    assert elementary.pairs_of(SAMPLED, relation) == both
    points = TEST.bits(0.5, relation)
    bits = CoinPair(points), CoinPair(tuple((y, x) for x, y in points))
    assert elementary.pairs_of(THINNED, relation) == tuple(
        OrNothing(0.5, Both(one, bit)) for one, bit in zip(both, bits, strict=True)
    )


@pytest.mark.parametrize("relation", [REPLACE, FEATURES])
def test_one_pair_is_enough_where_directions_are_alike(relation: Relation) -> None:
    assert elementary.pairs_of(PLAIN, relation) == (GaussianPair(2.0, 1.0, 0.0),)
    assert elementary.pairs_of(BOUNDED, relation) == (GaussianPair(4.0, 1.0, 0.0),)
    assert elementary.pairs_of(SAMPLED, relation) == (GaussianPair(4.0, 0.25, 0.25),)
    points = TEST.bits(0.5, relation)
    expected = OrNothing(0.5, Both(GaussianPair(4.0, 0.25, 0.25), CoinPair(points)))
    assert elementary.pairs_of(THINNED, relation) == (expected,)


@pytest.mark.parametrize("relation", [ZERO, REPLACE, FEATURES])
def test_pairs_of_subsets_never_have_too_small_a_rate(relation: Relation) -> None:
    directions = 2 if relation is ZERO else 1
    pairs = elementary.pairs_of(SUBSET, relation)
    assert pairs == (SubsetPair(4.0, math.nextafter(0.25, 1.0)),) * directions


def test_pairs_of_public_coins() -> None:
    for relation, directions in ((ZERO, 2), (FEATURES, 1)):
        inner = elementary.pairs_of(PLAIN, relation)
        pairs = elementary.pairs_of(VISIBLE, relation)
        assert pairs == tuple(OrNothing(0.5, pair) for pair in inner) and len(pairs) == directions


@pytest.mark.parametrize(
    "event",
    [
        dpa.LaplaceDpEvent(1.0),
        dpa.PoissonSampledDpEvent(0.1, BOUNDED),
        dpa.SampledWithoutReplacementDpEvent(12, 3, PLAIN),
        dpa.NonPrivateDpEvent(),
    ],
)
def test_what_has_no_proof_has_no_pair_and_no_divergence(event: dpa.DpEvent) -> None:
    for relation in Relation:
        with pytest.raises(NoProofError, match="no proof here covers"):
            elementary.pairs_of(event, relation)
        with pytest.raises(NoProofError, match="RDP accountant has no proof"):
            elementary.divergences_of(event, relation, ORDERS)


def test_divergences_of_each_kind() -> None:
    def found(event: dpa.DpEvent, relation: Relation) -> list[float]:
        return list(elementary.divergences_of(event, relation, ORDERS))

    alphas = np.array(ORDERS)
    sampled = rdp.poisson_gaussian(0.25, 4.0, ORDERS)
    for relation in Relation:
        times = 2 if relation in (REPLACE, FEATURES) else 1
        assert found(PLAIN, relation) == pytest.approx(alphas * times**2 / 32)
        assert found(BOUNDED, relation) == pytest.approx(alphas / 32)
    for relation in (ADD, ZERO):
        assert found(SAMPLED, relation) == pytest.approx(sampled)
        inner = alphas / 32
        coin = np.log(0.5 + 0.5 * np.exp((alphas - 1) * inner)) / (alphas - 1)
        assert found(VISIBLE, relation) == pytest.approx(coin)
        kept = sampled + bit_divergences(TEST.bits(0.5, ADD), ORDERS)
        trial = np.log(0.5 + 0.5 * np.exp((alphas - 1) * kept)) / (alphas - 1)
        assert found(THINNED, relation) == pytest.approx(trial)
        assert found(ADAPTIVE, relation) == pytest.approx(sampled)
        assert found(FILTER, relation) == [0.75] * 3
    for event in (SAMPLED, THINNED):
        with pytest.raises(NoProofError, match="under replace-one"):
            found(event, REPLACE)
        with pytest.raises(NoProofError, match="under replace-features"):
            found(event, FEATURES)


def test_divergences_add_up_at_each_order() -> None:
    leaves = ((PLAIN, 3), (SAMPLED, 2))
    total = elementary.total_divergences(leaves, ORDERS, ZERO)
    expected = 3 * np.array(ORDERS) / 32 + 2 * rdp.poisson_gaussian(0.25, 4.0, ORDERS)
    assert total.tolist() == pytest.approx(expected.tolist())
    assert elementary.total_divergences((), ORDERS, ZERO).tolist() == [0.0] * 3
    both = events.composed([events.repeated(PLAIN, 3), events.repeated(ORDERED, 2)])
    assert elementary.divergence(both, 2.0) == pytest.approx(float(expected[1]))


def test_every_relation_says_what_it_means() -> None:
    meanings = [relation.meaning for relation in Relation]
    assert len(set(meanings)) == 4 and all(
        text.startswith("one training record") for text in meanings
    )
    assert "absent" in ADD.meaning and "contributes nothing" in ZERO.meaning
    assert "any other" in REPLACE.meaning and "label is public" in FEATURES.meaning
    assert [relation.value for relation in Relation] == [
        "add-or-remove-one",
        "zero-out",
        "replace-one",
        "replace-features",
    ]
    assert "label" in PUBLIC_LABELS and Relation("zero-out") is ZERO
