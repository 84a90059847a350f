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

from tacit.errors import ArgumentError, NoProofError
from tacit.privacy import events, gaussian, pld, rdp
from tacit.privacy.relations import Relation


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
    relation = Relation(relation)
    if not covers(event, relation):
        raise NoProofError(
            f"the records' order is fixed in advance, which no proof covers under {relation.value}:"
            " adding or removing a record moves all others; use zero-out or replace-one"
        )
    return _EPSILON[Accountant(accountant)](_frozen(event), delta, relation)


def applied(event: DpEvent, delta: float, relation: Relation, accountant: Accountant) -> Accountant:
    """The accountant that `epsilon` takes its number from.

    For PLD that is the exact Gaussian where nothing is sampled, and RDP where PLD has no finite
    bound.
    """
    leaves = _frozen(event)
    if accountant is Accountant.PLD and _all_gaussian(leaves):
        return Accountant.GAUSSIAN
    if accountant is not Accountant.PLD or relation not in _HAS_RDP or _is_unprotected(leaves):
        return accountant
    sampled = any(isinstance(leaf, dpa.PoissonSampledDpEvent) for leaf, _ in leaves)
    beyond = sampled and math.isinf(_numerical(leaves, delta, relation))
    return Accountant.RDP if beyond else accountant


def covers(event: DpEvent, relation: Relation) -> bool:
    """Whether a proof here covers every part of `event` under `relation`."""
    return relation in _KEEPS_THE_COUNT or not any(
        isinstance(leaf, events.FixedOrderDpEvent) for leaf in events.leaves(event)
    )


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


def _sampled_gaussian(event: DpEvent) -> tuple[float, float]:
    """Sampling rate and noise multiplier; the only elementary events with a proof here."""
    if isinstance(event, dpa.GaussianDpEvent):
        return 1.0, event.noise_multiplier
    if isinstance(event, dpa.PoissonSampledDpEvent) and isinstance(
        event.event, dpa.GaussianDpEvent
    ):
        return event.sampling_probability, event.event.noise_multiplier
    raise NoProofError(f"no proof here covers {event!r}; it cannot be accounted for")


def _all_gaussian(leaves: Leaves) -> bool:
    return bool(leaves) and all(isinstance(event, dpa.GaussianDpEvent) for event, _ in leaves)


def _is_unprotected(leaves: Leaves) -> bool:
    return any(isinstance(event, dpa.NonPrivateDpEvent) for event, _ in leaves)


def _directions(relation: Relation) -> list[Callable[[float, float], pld.GaussianPair]]:
    """Dominating pairs of the Poisson-sampled Gaussian (Zhu, Dong and Wang 2022; for replacement,
    opposite contributions of a record that is sampled or not, as dp-accounting's REPLACE_ONE).

    Replacing features is one way of replacing a record. A record that contributes zero moves the
    noised sum exactly as an absent one does.
    """
    if relation in (Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT):
        return [
            lambda rate, sigma: pld.GaussianPair(sigma, rate, 0.0),
            lambda rate, sigma: pld.GaussianPair(sigma, 0.0, rate),
        ]
    return [lambda rate, sigma: pld.GaussianPair(sigma, rate, rate)]


@lru_cache(maxsize=64)
def _losses(leaves: Leaves, relation: Relation) -> tuple[pld.ComposedLoss, ...]:
    sampled = [(_sampled_gaussian(event), count) for event, count in leaves]
    return tuple(
        pld.compose([(pair(rate, sigma), count) for (rate, sigma), count in sampled])
        for pair in _directions(relation)
    )


def _pld(leaves: Leaves, delta: float, relation: Relation) -> float:
    if _is_unprotected(leaves):
        return math.inf
    if not leaves:
        return 0.0
    if _all_gaussian(leaves):
        return _gaussian(leaves, delta, relation)
    found = _numerical(leaves, delta, relation)
    if math.isinf(found) and relation in _HAS_RDP:
        return _rdp(leaves, delta, relation)
    return found


def _numerical(leaves: Leaves, delta: float, relation: Relation) -> float:
    return max(loss.epsilon(delta) for loss in _losses(leaves, relation))


def _rdp(leaves: Leaves, delta: float, relation: Relation) -> float:
    if _is_unprotected(leaves):
        return math.inf
    total = np.zeros(len(rdp.ORDERS))
    for event, count in leaves:
        rate, sigma = _sampled_gaussian(event)
        if relation in _REPLACED:
            if rate != 1.0:
                raise NoProofError(
                    f"the RDP accountant has no proof for Poisson sampling under"
                    f" {relation.value}; use accountant 'pld'"
                )
            sigma /= 2
        total += count * rdp.poisson_gaussian(rate, sigma, rdp.ORDERS)
    return rdp.epsilon_of(total, delta)[0] if leaves else 0.0


def _gaussian(leaves: Leaves, delta: float, relation: Relation) -> float:
    if _is_unprotected(leaves):
        return math.inf
    mu_squared = 0.0
    for event, count in leaves:
        rate, sigma = _sampled_gaussian(event)
        if rate != 1.0:
            raise NoProofError(
                "the exact Gaussian accountant covers runs without sampling only; use"
                " accountant 'pld'"
            )
        mu_squared += count / sigma**2
    doubling = 2.0 if relation in _REPLACED else 1.0
    return gaussian.epsilon_of(doubling * math.sqrt(mu_squared), delta)


_EPSILON: dict[Accountant, Callable[[Leaves, float, Relation], float]] = {
    Accountant.PLD: _pld,
    Accountant.RDP: _rdp,
    Accountant.GAUSSIAN: _gaussian,
}
