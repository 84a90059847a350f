"""What one event costs under a relation: how far it moves, dominating pairs, Rényi divergences.

This and `accountants.py`, which adds up, are the sole place that applies the neighbouring relation.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache

import dp_accounting as dpa
import numpy as np
from dp_accounting import DpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from numpy.typing import NDArray

from tacit.errors import NoProofError
from tacit.privacy import events, rdp, thinning
from tacit.privacy.bits import Both, CoinPair
from tacit.privacy.gaussian_pair import GaussianPair
from tacit.privacy.loss_points import Pair
from tacit.privacy.relations import Relation
from tacit.privacy.selection import candidates_of
from tacit.privacy.subsets import SubsetPair
from tacit.privacy.visible import OrNothing

REPLACED = (Relation.REPLACE_ONE, Relation.REPLACE_FEATURES)
HAS_RDP = (Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT)
ADAPTIVE = (events.AdaptiveDpEvent, events.FilterDpEvent)
_KEEPS_THE_COUNT = (*REPLACED, Relation.ZERO_OUT)
Leaves = tuple[tuple[DpEvent, int], ...]


def relations_of(leaf: DpEvent) -> tuple[Relation, ...]:
    """Under which relations there is a proof for an elementary event."""
    if isinstance(leaf, events.VisibleDpEvent):
        return (Relation.REPLACE_FEATURES, Relation.ZERO_OUT)
    if isinstance(leaf, events.FixedOrderDpEvent | dpa.SampledWithoutReplacementDpEvent):
        return _KEEPS_THE_COUNT
    if isinstance(leaf, ADAPTIVE):
        return HAS_RDP
    if isinstance(leaf, RepeatAndSelectDpEvent):
        inside = {part for run in candidates_of(leaf) for part in events.leaves(run)}
        return tuple(each for each in Relation if all(_selectable(part, each) for part in inside))
    return tuple(Relation)


def _selectable(leaf: DpEvent, relation: Relation) -> bool:
    """Whether the best of several such releases is covered: at every order, not at one only."""
    if isinstance(leaf, ADAPTIVE) or relation not in relations_of(leaf):
        return False
    try:
        divergences_of(_unwrapped(leaf), relation, (2.0,))
    except NoProofError:
        return False
    return True


def is_adaptive(event: DpEvent) -> bool:
    """Whether noise in some part of `event` depends on earlier results."""
    return any(isinstance(leaf, ADAPTIVE) for leaf in events.leaves(event))


def is_selected(event: DpEvent) -> bool:
    """Whether some part of `event` is the best of several runs."""
    return any(isinstance(leaf, RepeatAndSelectDpEvent) for leaf in events.leaves(event))


def leaves_of(event: DpEvent) -> Leaves:
    counts: Counter[DpEvent] = Counter()
    for leaf, count in events.leaves(event).items():
        counts[_unwrapped(leaf)] += count
    return tuple(sorted(counts.items(), key=lambda item: repr(item[0])))


def _unwrapped(leaf: DpEvent) -> DpEvent:
    return leaf.event if isinstance(leaf, events.FixedOrderDpEvent) else leaf


def mu_of(event: DpEvent, relation: Relation) -> float | None:
    """How many standard deviations a record moves what is released; None where it is sampled."""
    if isinstance(event, events.VisibleDpEvent) and event.probability == 1:
        return mu_of(event.event, relation)
    if isinstance(event, events.BoundedGaussianDpEvent):
        return 1 / event.noise_multiplier
    if isinstance(event, dpa.GaussianDpEvent):
        return (2 if relation in REPLACED else 1) / float(event.noise_multiplier)
    return None


def pairs_of(event: DpEvent, relation: Relation) -> tuple[Pair, ...]:
    """A dominating pair for each direction of the relation.

    For the Poisson-sampled Gaussian those of Zhu, Dong and Wang (2022); for replacement, opposite
    contributions of a record that is sampled or not, as dp-accounting's REPLACE_ONE. Replacing
    features is one way of replacing a record. A record that contributes zero moves the noised sum
    exactly as an absent one does. Subsets: docs/proofs/batch_clipping.md.
    Public coins: docs/proofs/sanitization.md. Thinning: docs/proofs/selective.md.
    """
    directions = 1 if relation in REPLACED else 2
    mu = mu_of(event, relation)
    if mu is not None:
        return (GaussianPair(1 / mu, 1.0, 0.0), GaussianPair(1 / mu, 0.0, 1.0))[:directions]
    match event:
        case dpa.PoissonSampledDpEvent(
            sampling_probability=rate, event=dpa.GaussianDpEvent(noise_multiplier=sigma)
        ):
            if relation in REPLACED:
                return (GaussianPair(sigma, rate, rate),)
            return GaussianPair(sigma, rate, 0.0), GaussianPair(sigma, 0.0, rate)
        case dpa.SampledWithoutReplacementDpEvent(
            source_dataset_size=of,
            sample_size=size,
            event=events.BoundedGaussianDpEvent(noise_multiplier=sigma),
        ):
            return (SubsetPair(sigma, math.nextafter(size / of, 1.0)),) * directions
        case events.VisibleDpEvent(probability=rate, event=inner):
            return tuple(OrNothing(rate, pair) for pair in pairs_of(inner, relation))
        case events.ThinnedDpEvent(event=inner, test=test, coin=coin):
            points = test.bits(coin, relation)
            bits = CoinPair(points), CoinPair(tuple((y, x) for x, y in points))
            releases = pairs_of(inner, relation)
            return tuple(
                OrNothing(coin, Both(release, bit))
                for release, bit in zip(releases, bits[: len(releases)], strict=True)
            )
    raise NoProofError(f"no proof here covers {event!r}; it cannot be accounted for")


@lru_cache(maxsize=4096)
def divergences_of(
    event: DpEvent, relation: Relation, orders: tuple[float, ...]
) -> NDArray[np.float64]:
    mu = mu_of(event, relation)
    if mu is not None:
        return rdp.poisson_gaussian(1.0, 1 / mu, orders)
    match event:
        case dpa.PoissonSampledDpEvent(
            sampling_probability=rate, event=dpa.GaussianDpEvent(noise_multiplier=sigma)
        ) if relation not in REPLACED:
            return rdp.poisson_gaussian(rate, sigma, orders)
        case events.VisibleDpEvent(probability=rate, event=inner):
            return rdp.or_nothing(rate, divergences_of(inner, relation, orders), orders)
        case events.ThinnedDpEvent(event=inner, test=test, coin=coin) if relation in HAS_RDP:
            release = divergences_of(inner, relation, orders)
            return thinning.trial_divergences(release, test, coin, orders)
        case events.AdaptiveDpEvent(event=inner):
            return total_divergences(leaves_of(inner), orders, relation)
        case events.FilterDpEvent(limit=limit):
            return np.full(len(orders), limit)
    raise NoProofError(
        f"the RDP accountant has no proof for {type(event).__name__} under {relation.value}; use"
        " accountant 'pld'"
    )


def total_divergences(
    leaves: Leaves, orders: tuple[float, ...], relation: Relation
) -> NDArray[np.float64]:
    """Divergences of all events together, at each order."""
    total = np.zeros(len(orders))
    for event, count in leaves:
        total += count * divergences_of(event, relation, orders)
    return total


@lru_cache(maxsize=65536)
def divergence(event: DpEvent, order: float) -> float:
    """Rényi divergence of this order, add-or-remove-one: what an RDP filter adds up."""
    return float(total_divergences(leaves_of(event), (order,), Relation.ADD_OR_REMOVE_ONE)[0])
