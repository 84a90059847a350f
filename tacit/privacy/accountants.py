"""What a run costs: the sole place that applies the neighbouring relation.

Every accountant takes the same events, refuses those it has no proof for, and returns an ε that
is at least the true one. The relation enters here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import lru_cache

import dp_accounting as dpa
import numpy as np
from dp_accounting import DpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from numpy.typing import NDArray

from tacit.errors import ArgumentError, NoProofError
from tacit.privacy import elementary, events, gaussian, pld, rdp, visible
from tacit.privacy.elementary import Leaves
from tacit.privacy.profiles import (
    ComposedProfile,
    GaussianProfile,
    OneOrderProfile,
    Profile,
    RenyiProfile,
)
from tacit.privacy.relations import Relation
from tacit.privacy.selection import RunCount, candidates_of


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
    relation = _covered(event, relation)
    if elementary.is_adaptive(event):
        return _at_one_order(tuple(events.leaves(event).items()), delta, relation)
    if elementary.is_selected(event):
        return _rdp(elementary.leaves_of(event), delta, relation)
    return _EPSILON[Accountant(accountant)](elementary.leaves_of(event), delta, relation)


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
    if elementary.is_selected(event):
        return (
            f"the best of several runs has no proof under {relation.value}: every one needs bounds"
            " of all Rényi orders, with noise fixed in advance. Use add-or-remove-one with DP-SGD,"
            " or zero-out with DP-FTRL"
        )
    if elementary.is_adaptive(event) and relation in elementary.REPLACED:
        return (
            f"noise depends on earlier results, which no proof here covers under {relation.value};"
            " use add-or-remove-one, or keep the noise constant"
        )
    return (
        f"the records' number or order is fixed in advance, which no proof covers under"
        f" {relation.value}: adding or removing a record moves all others; use zero-out or"
        " replace-one"
    )


def profile(event: DpEvent, relation: Relation) -> Profile:
    """What `event` costs at every ε and δ; exactly where nothing is sampled."""
    relation = _covered(event, relation)
    leaves = elementary.leaves_of(event)
    if elementary.is_adaptive(event) and not _is_unprotected(leaves):
        return OneOrderProfile(*_one_order(leaves, relation))
    if elementary.is_selected(event):
        return RenyiProfile(tuple(_divergences(leaves, relation).tolist()))
    if _is_unprotected(leaves):
        return GaussianProfile(math.inf)
    if not leaves or _all_gaussian(leaves):
        return GaussianProfile(_composed_mu(leaves, relation))
    return ComposedProfile(_losses(leaves, relation))


def applied(event: DpEvent, delta: float, relation: Relation, accountant: Accountant) -> Accountant:
    """The accountant that `epsilon` takes its number from.

    For PLD that is the exact Gaussian where nothing is sampled, and RDP where PLD has no finite
    bound. Where noise depended on earlier results it is RDP in any case.
    """
    leaves = elementary.leaves_of(event)
    if elementary.is_adaptive(event) or elementary.is_selected(event):
        return Accountant.RDP
    if accountant is Accountant.PLD and _is_exact(leaves):
        return Accountant.GAUSSIAN
    if (
        accountant is not Accountant.PLD
        or relation not in elementary.HAS_RDP
        or _is_unprotected(leaves)
    ):
        return accountant
    sampled = dpa.PoissonSampledDpEvent | events.ThinnedDpEvent
    poisson = any(isinstance(leaf, sampled) for leaf, _ in leaves)
    beyond = (
        poisson and not _has_subsets(leaves) and math.isinf(_numerical(leaves, delta, relation))
    )
    return Accountant.RDP if beyond else accountant


def covers(event: DpEvent, relation: Relation) -> bool:
    """Whether a proof here covers every part of `event` under `relation`."""
    return all(relation in elementary.relations_of(leaf) for leaf in events.leaves(event))


def check_delta(delta: float) -> None:
    """Refuse a δ that means nothing."""
    if not 0 < delta < 1:
        raise ArgumentError(
            f"delta is {delta}; it must lie strictly between 0 and 1, and well below one over"
            " the number of records"
        )


def _all_gaussian(leaves: Leaves) -> bool:
    return bool(leaves) and all(
        elementary.mu_of(event, Relation.ZERO_OUT) is not None for event, _ in leaves
    )


def _is_exact(leaves: Leaves) -> bool:
    """Whether the run is Gaussian, up to one kind of public coin."""
    same = Relation.ZERO_OUT
    coins = [event for event, _ in leaves if elementary.mu_of(event, same) is None]
    return bool(leaves) and (not coins or (len(coins) == 1 and _coin(coins[0], same) is not None))


def _coin(event: DpEvent, relation: Relation) -> tuple[float, float] | None:
    """Rate and μ of a Gaussian release that a public coin may leave out."""
    if isinstance(event, events.VisibleDpEvent) and event.probability < 1:
        mu = elementary.mu_of(event.event, relation)
        return None if mu is None else (event.probability, mu)
    return None


def _has_subsets(leaves: Leaves) -> bool:
    return any(isinstance(leaf, dpa.SampledWithoutReplacementDpEvent) for leaf, _ in leaves)


def _is_unprotected(leaves: Leaves) -> bool:
    return any(isinstance(event, dpa.NonPrivateDpEvent) for event, _ in leaves)


_WORTH_THREADS = 100
"""Different events from which on both directions are composed at once: numpy lets go of Python's
lock for most of the time."""


@lru_cache(maxsize=64)
def _losses(leaves: Leaves, relation: Relation) -> tuple[pld.ComposedLoss, ...]:
    by_direction = zip(*(elementary.pairs_of(event, relation) for event, _ in leaves), strict=True)
    counts = [count for _, count in leaves]
    parts = [list(zip(pairs, counts, strict=True)) for pairs in dict.fromkeys(by_direction)]
    if any(pld.is_unbounded(pair) for part in parts for pair, _ in part):
        return (pld.unbounded(),)
    if len(leaves) < _WORTH_THREADS or len(parts) == 1:
        return tuple(map(pld.compose, parts))
    with ThreadPoolExecutor(len(parts)) as threads:
        return tuple(threads.map(pld.compose, parts))


def _pld(leaves: Leaves, delta: float, relation: Relation) -> float:
    if _is_unprotected(leaves):
        return math.inf
    if not leaves or _is_exact(leaves):
        return _gaussian(leaves, delta, relation)
    found = _numerical(leaves, delta, relation)
    if math.isinf(found) and relation in elementary.HAS_RDP and not _has_subsets(leaves):
        return _rdp(leaves, delta, relation)
    return found


def _numerical(leaves: Leaves, delta: float, relation: Relation) -> float:
    return max(loss.epsilon(delta) for loss in _losses(leaves, relation))


def _rdp(leaves: Leaves, delta: float, relation: Relation) -> float:
    if _is_unprotected(leaves):
        return math.inf
    return rdp.epsilon_of(_divergences(leaves, relation), delta)[0] if leaves else 0.0


def _divergences(leaves: Leaves, relation: Relation) -> NDArray[np.float64]:
    """Of all events together, at every order."""
    chosen = [leaf for leaf in leaves if isinstance(leaf[0], RepeatAndSelectDpEvent)]
    others = tuple(leaf for leaf in leaves if leaf not in chosen)
    total = elementary.total_divergences(others, rdp.ORDERS, relation)
    for event, count in chosen:
        total += count * _best(event, relation)
    return total


@lru_cache(maxsize=64)
def _best(event: RepeatAndSelectDpEvent, relation: Relation) -> NDArray[np.float64]:
    """The best of several runs: whatever run is chosen, none costs more than the largest."""
    candidates = candidates_of(event)
    each = [_divergences(elementary.leaves_of(run), relation) for run in candidates]
    profiles = [profile(run, relation) for run in candidates]
    return RunCount(event.mean, event.shape).divergences(
        np.asarray(rdp.ORDERS),
        np.max(each, axis=0),
        lambda epsilon: max(found.delta(epsilon) for found in profiles),
    )


def _at_one_order(leaves: Leaves, delta: float, relation: Relation) -> float:
    """Adaptive events at the order that was fixed for them in advance, as an RDP filter does."""
    if _is_unprotected(leaves):
        return math.inf
    order, total = _one_order(leaves, relation)
    return rdp.epsilon_at(order, total, delta)


def _one_order(leaves: Leaves, relation: Relation) -> tuple[float, float]:
    """The order of adaptive events, and the divergence of everything at it."""
    orders = {event.order for event, _ in leaves if isinstance(event, elementary.ADAPTIVE)}
    if len(orders) != 1:
        raise NoProofError(
            f"noise depends on earlier results, and the orders {sorted(orders)} are mixed; a proof"
            " needs one order, fixed in advance"
        )
    total = elementary.total_divergences(leaves, tuple(orders), relation)
    return orders.pop(), float(total[0])


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
        mu = elementary.mu_of(event, relation)
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
