"""What a run costs: the sole place that applies the neighbouring relation.

Every accountant takes the same events, refuses those it has no proof for, and returns an ε that
is at least the true one. The relation enters here and nowhere else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from enum import Enum
from functools import lru_cache

import dp_accounting as dpa
import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from tacit.errors import ArgumentError, NoProofError
from tacit.privacy import events, gaussian, pld, rdp, visible
from tacit.privacy.profiles import ComposedProfile, GaussianProfile
from tacit.privacy.relations import Relation
from tacit.privacy.subsets import SubsetPair
from tacit.privacy.visible import OrNothing


class Accountant(str, Enum):
    """Ways to add up the cost of a run."""

    PLD = "pld"
    RDP = "rdp"
    GAUSSIAN = "gaussian"


def epsilon(
    event: DpEvent,
    delta: float,
    relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    accountant: Accountant = Accountant.PLD,
) -> float:
    """An ε such that `event` is (ε, δ)-private for neighbours under `relation`.

    Infinite where the event protects nothing. Raises NoProofError for an event, or a pair of event
    and relation, that no proof here covers.

    >>> step = events.poisson(1 / 235, events.gaussian(1.0))
    >>> round(epsilon(events.repeated(step, 4700), 1e-5), 2)
    1.57
    """
    check_delta(delta)
    return _EPSILON[Accountant(accountant)](_frozen(event), delta, _covered(event, relation))


def _covered(event: DpEvent, relation: Relation) -> Relation:
    relation = Relation(relation)
    if not covers(event, relation):
        raise NoProofError(_uncovered(event, relation))
    return relation


def _uncovered(event: DpEvent, relation: Relation) -> str:
    if any(isinstance(leaf, events.VisibleDpEvent) for leaf in events.leaves(event)):
        return (
            "it is public who takes part and with which label, so nothing is proven under"
            f" {relation.value}; use replace-features or zero-out"
        )
    return (
        f"the records' number or order is fixed in advance, which no proof covers under"
        f" {relation.value}: adding or removing a record moves all others; use zero-out or"
        " replace-one"
    )


def profile(event: DpEvent, relation: Relation) -> GaussianProfile | ComposedProfile:
    """What `event` costs at every ε and δ; exactly where nothing is sampled."""
    relation = _covered(event, relation)
    leaves = _frozen(event)
    if _is_unprotected(leaves):
        return GaussianProfile(math.inf)
    if not leaves or _all_gaussian(leaves):
        return GaussianProfile(_composed_mu(leaves, relation))
    return ComposedProfile(_losses(leaves, relation))


def applied(event: DpEvent, delta: float, relation: Relation, accountant: Accountant) -> Accountant:
    """The accountant that `epsilon` takes its number from.

    For PLD that is the exact Gaussian where nothing is sampled, and RDP where PLD has no finite
    bound.
    """
    leaves = _frozen(event)
    if accountant is Accountant.PLD and _is_exact(leaves):
        return Accountant.GAUSSIAN
    if accountant is not Accountant.PLD or relation not in _HAS_RDP or _is_unprotected(leaves):
        return accountant
    poisson = any(isinstance(leaf, dpa.PoissonSampledDpEvent) for leaf, _ in leaves)
    beyond = (
        poisson and not _has_subsets(leaves) and math.isinf(_numerical(leaves, delta, relation))
    )
    return Accountant.RDP if beyond else accountant


def covers(event: DpEvent, relation: Relation) -> bool:
    """Whether a proof here covers every part of `event` under `relation`."""
    return all(relation in _relations(leaf) for leaf in events.leaves(event))


def _relations(leaf: DpEvent) -> tuple[Relation, ...]:
    """Under which relations there is a proof for an elementary event."""
    if isinstance(leaf, events.VisibleDpEvent):
        return (Relation.REPLACE_FEATURES, Relation.ZERO_OUT)
    if isinstance(leaf, events.FixedOrderDpEvent | dpa.SampledWithoutReplacementDpEvent):
        return _KEEPS_THE_COUNT
    return tuple(Relation)


def check_delta(delta: float) -> None:
    """Refuse a δ that means nothing."""
    if not 0 < delta < 1:
        raise ArgumentError(
            f"delta is {delta}; it must lie strictly between 0 and 1, and well below one over"
            " the number of records"
        )


_REPLACED = (Relation.REPLACE_ONE, Relation.REPLACE_FEATURES)
_HAS_RDP = (Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT)
_KEEPS_THE_COUNT = (*_REPLACED, Relation.ZERO_OUT)
Leaves = tuple[tuple[DpEvent, int], ...]


def _frozen(event: DpEvent) -> Leaves:
    counts: Counter[DpEvent] = Counter()
    for leaf, count in events.leaves(event).items():
        counts[leaf.event if isinstance(leaf, events.FixedOrderDpEvent) else leaf] += count
    return tuple(sorted(counts.items(), key=lambda item: repr(item[0])))


def _all_gaussian(leaves: Leaves) -> bool:
    return bool(leaves) and all(_mu(event, Relation.ZERO_OUT) is not None for event, _ in leaves)


def _is_exact(leaves: Leaves) -> bool:
    """Whether the run is Gaussian, up to one kind of public coin."""
    same = Relation.ZERO_OUT
    coins = [event for event, _ in leaves if _mu(event, same) is None]
    return bool(leaves) and (not coins or (len(coins) == 1 and _coin(coins[0], same) is not None))


def _coin(event: DpEvent, relation: Relation) -> tuple[float, float] | None:
    """Rate and μ of a Gaussian release that a public coin may leave out."""
    if isinstance(event, events.VisibleDpEvent) and event.probability < 1:
        mu = _mu(event.event, relation)
        return None if mu is None else (event.probability, mu)
    return None


def _has_subsets(leaves: Leaves) -> bool:
    return any(isinstance(leaf, dpa.SampledWithoutReplacementDpEvent) for leaf, _ in leaves)


def _is_unprotected(leaves: Leaves) -> bool:
    return any(isinstance(event, dpa.NonPrivateDpEvent) for event, _ in leaves)


def _mu(event: DpEvent, relation: Relation) -> float | None:
    """How many standard deviations a record moves what is released; None where it is sampled."""
    if isinstance(event, events.VisibleDpEvent) and event.probability == 1:
        return _mu(event.event, relation)
    if isinstance(event, events.BoundedGaussianDpEvent):
        return 1 / event.noise_multiplier
    if isinstance(event, dpa.GaussianDpEvent):
        return (2 if relation in _REPLACED else 1) / float(event.noise_multiplier)
    return None


def _pairs(event: DpEvent, relation: Relation) -> tuple[pld.Pair, ...]:
    """A dominating pair for each direction of the relation.

    For the Poisson-sampled Gaussian those of Zhu, Dong and Wang (2022); for replacement, opposite
    contributions of a record that is sampled or not, as dp-accounting's REPLACE_ONE. Replacing
    features is one way of replacing a record. A record that contributes zero moves the noised sum
    exactly as an absent one does. Subsets: docs/proofs/batch_clipping.md.
    Public coins: docs/proofs/sanitization.md.
    """
    directions = 1 if relation in _REPLACED else 2
    mu = _mu(event, relation)
    if mu is not None:
        return (pld.GaussianPair(1 / mu, 1.0, 0.0), pld.GaussianPair(1 / mu, 0.0, 1.0))[:directions]
    match event:
        case dpa.PoissonSampledDpEvent(
            sampling_probability=rate, event=dpa.GaussianDpEvent(noise_multiplier=sigma)
        ):
            if relation in _REPLACED:
                return (pld.GaussianPair(sigma, rate, rate),)
            return pld.GaussianPair(sigma, rate, 0.0), pld.GaussianPair(sigma, 0.0, rate)
        case dpa.SampledWithoutReplacementDpEvent(
            source_dataset_size=of,
            sample_size=size,
            event=events.BoundedGaussianDpEvent(noise_multiplier=sigma),
        ):
            return (SubsetPair(sigma, math.nextafter(size / of, 1.0)),) * directions
        case events.VisibleDpEvent(probability=rate, event=inner):
            return tuple(OrNothing(rate, pair) for pair in _pairs(inner, relation))
    raise NoProofError(f"no proof here covers {event!r}; it cannot be accounted for")


@lru_cache(maxsize=64)
def _losses(leaves: Leaves, relation: Relation) -> tuple[pld.ComposedLoss, ...]:
    by_direction = zip(*(_pairs(event, relation) for event, _ in leaves), strict=True)
    counts = [count for _, count in leaves]
    return tuple(
        pld.compose(list(zip(pairs, counts, strict=True))) for pairs in dict.fromkeys(by_direction)
    )


def _pld(leaves: Leaves, delta: float, relation: Relation) -> float:
    if _is_unprotected(leaves):
        return math.inf
    if not leaves or _is_exact(leaves):
        return _gaussian(leaves, delta, relation)
    found = _numerical(leaves, delta, relation)
    if math.isinf(found) and relation in _HAS_RDP and not _has_subsets(leaves):
        return _rdp(leaves, delta, relation)
    return found


def _numerical(leaves: Leaves, delta: float, relation: Relation) -> float:
    return max(loss.epsilon(delta) for loss in _losses(leaves, relation))


def _rdp(leaves: Leaves, delta: float, relation: Relation) -> float:
    if _is_unprotected(leaves):
        return math.inf
    total = np.zeros(len(rdp.ORDERS))
    for event, count in leaves:
        total += count * _rdp_of(event, relation)
    return rdp.epsilon_of(total, delta)[0] if leaves else 0.0


def _rdp_of(event: DpEvent, relation: Relation) -> NDArray[np.float64]:
    mu = _mu(event, relation)
    if mu is not None:
        return rdp.poisson_gaussian(1.0, 1 / mu, rdp.ORDERS)
    match event:
        case dpa.PoissonSampledDpEvent(
            sampling_probability=rate, event=dpa.GaussianDpEvent(noise_multiplier=sigma)
        ) if relation not in _REPLACED:
            return rdp.poisson_gaussian(rate, sigma, rdp.ORDERS)
        case events.VisibleDpEvent(probability=rate, event=inner):
            return rdp.or_nothing(rate, _rdp_of(inner, relation), rdp.ORDERS)
    raise NoProofError(
        f"the RDP accountant has no proof for {type(event).__name__} under {relation.value}; use"
        " accountant 'pld'"
    )


def _gaussian(leaves: Leaves, delta: float, relation: Relation) -> float:
    if _is_unprotected(leaves):
        return math.inf
    fixed = tuple(leaf for leaf in leaves if _coin(leaf[0], relation) is None)
    coins = [(count, *coin) for e, count in leaves if (coin := _coin(e, relation)) is not None]
    mu = _composed_mu(fixed, relation)
    if len(coins) > 1:
        raise NoProofError("two kinds of public coins have no exact sum; use accountant 'pld'")
    return visible.epsilon_of(*coins[0], mu**2, delta) if coins else gaussian.epsilon_of(mu, delta)


def _composed_mu(leaves: Leaves, relation: Relation) -> float:
    squared = 0.0
    for event, count in leaves:
        mu = _mu(event, relation)
        if mu is None:
            raise NoProofError(
                "the exact Gaussian accountant covers runs without sampling only; use"
                " accountant 'pld'"
            )
        squared += count * mu**2
    return math.sqrt(squared)


_EPSILON: dict[Accountant, Callable[[Leaves, float, Relation], float]] = {
    Accountant.PLD: _pld,
    Accountant.RDP: _rdp,
    Accountant.GAUSSIAN: _gaussian,
}
