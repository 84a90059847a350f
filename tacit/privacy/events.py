"""What happened, as dp-accounting events; what it costs is the accountants' business.

The ledger stores events as plain JSON, so that nothing it holds can run code and any other
program can read it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import dp_accounting as dpa
from dp_accounting import DpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent

from tacit.errors import ArgumentError, NoProofError
from tacit.privacy.relations import Relation
from tacit.privacy.selection import RunCount, best_of, candidates_of
from tacit.privacy.thinning import AcceptanceTest

Json = dict[str, Any]

_PROBABILITY_GRID = 1 << 32


def sampling_probability(records: int, batch_size: float, name: str = "batch_size") -> float:
    """The rate at which a Poisson sampler takes each record: a multiple of 2⁻³², rounded down.

    The sampler compares 32 random bits with this rate, so what is accounted is what is drawn.

    >>> sampling_probability(1024, 256)
    0.25
    """
    if records < 1:
        raise ArgumentError(f"records is {records}; there must be at least one training record")
    if not 0 < batch_size <= records:
        raise ArgumentError(
            f"{name} is {batch_size:g}; the expected batch must lie above 0 and at most at"
            f" the number of records, {records}"
        )
    steps = math.floor(_PROBABILITY_GRID * (batch_size / records))
    if steps == 0:
        raise ArgumentError(
            f"batch_size is {batch_size:g} of {records} records: a record would be drawn with a"
            " probability below 2⁻³², which the sampler cannot; choose a larger batch"
        )
    return steps / _PROBABILITY_GRID


def gaussian(noise_multiplier: float) -> DpEvent:
    """A vector of sensitivity 1 released with normal noise of this standard deviation."""
    return dpa.GaussianDpEvent(_noise(noise_multiplier))


def poisson(probability: float, event: DpEvent) -> DpEvent:
    """`event` on a sample that holds each record independently with this probability."""
    return event if probability == 1.0 else dpa.PoissonSampledDpEvent(probability, event)


@dataclass(frozen=True)
class BoundedGaussianDpEvent(DpEvent):
    """A vector that no change of one record moves by more than 1, released with normal noise.

    Unlike a Gaussian event on a sum, whose sensitivity doubles when a record is replaced, this one
    moves as far under every relation: a clipped mean can end anywhere in its ball.
    """

    noise_multiplier: float


def bounded_gaussian(noise_multiplier: float) -> DpEvent:
    """A vector from a ball of diameter 1 with normal noise of this standard deviation."""
    return BoundedGaussianDpEvent(_noise(noise_multiplier))


def _noise(multiplier: float) -> float:
    if not (multiplier > 0 and math.isfinite(multiplier)):
        raise ArgumentError(f"noise is {multiplier}; it must be a positive finite number")
    return multiplier


def subset(size: int, of: int, event: DpEvent) -> DpEvent:
    """`event` on a fresh uniform subset of `size` out of `of` records (or sets of records)."""
    if not 1 <= size <= of:
        raise ArgumentError(f"a subset of {size} out of {of} cannot be drawn; choose 1 to {of}")
    return event if size == of else dpa.SampledWithoutReplacementDpEvent(of, size, event)


@dataclass(frozen=True)
class FixedOrderDpEvent(DpEvent):
    """`event`, where every record has its place in an order that is fixed in advance.

    Adding or removing a record would move the others, so only relations that keep the number of
    records are covered.
    """

    event: DpEvent


def fixed_order(event: DpEvent) -> DpEvent:
    """`event` on records whose places do not depend on the data."""
    return FixedOrderDpEvent(event)


@dataclass(frozen=True)
class VisibleDpEvent(DpEvent):
    """`event`, where each record takes part by a public coin of its own.

    Who takes part, and with which label, is public, so only a change of features is covered. At
    rate 1 this is one vector for every record, or a sum over all records of a public label. A mask
    that drops values by public coins is the same event, value by value.
    """

    probability: float
    event: DpEvent


def visible(probability: float, event: DpEvent) -> DpEvent:
    """`event` on records, or values, that take part with this probability for all to see."""
    if not 0 < probability <= 1:
        raise ArgumentError(f"the rate is {probability}; it must lie above 0 and at most at 1")
    return VisibleDpEvent(probability, event)


@dataclass(frozen=True)
class ThinnedDpEvent(DpEvent):
    """`event`, its result kept with a probability that `test` bounds, and nothing otherwise.

    The noisy value that decided about it is not used again. `coin` is part of the proof alone.
    """

    event: DpEvent
    test: AcceptanceTest
    coin: float


def thinned(event: DpEvent, test: AcceptanceTest, coin: float) -> DpEvent:
    """`event` with a result that is kept or not; `coin` must exceed every acceptance."""
    test.bits(coin, Relation.ADD_OR_REMOVE_ONE)
    return ThinnedDpEvent(event, test, coin)


@dataclass(frozen=True)
class AdaptiveDpEvent(DpEvent):
    """`event`, where its noise depended on earlier results.

    Such events add up at one Rényi order, fixed before the first of them, and not otherwise.
    """

    event: DpEvent
    order: float


def adaptive(event: DpEvent, order: float) -> DpEvent:
    """`event` with parameters chosen after earlier results were seen."""
    return AdaptiveDpEvent(event, _order(order))


@dataclass(frozen=True)
class FilterDpEvent(DpEvent):
    """Everything that a filter lets through: divergences of one order up to a limit."""

    order: float
    limit: float


def filtered(order: float, limit: float) -> DpEvent:
    """Adaptive events whose divergences of this order never exceed `limit` together."""
    if not (limit >= 0 and math.isfinite(limit)):
        raise ArgumentError(f"the limit of a filter is {limit}; it must be finite and at least 0")
    return FilterDpEvent(_order(order), limit)


def _order(order: float) -> float:
    if not (order > 1 and math.isfinite(order)):
        raise ArgumentError(f"a Rényi order is {order}; it must be finite and above 1")
    return order


def repeated(event: DpEvent, count: int) -> DpEvent:
    """`event`, `count` times over."""
    return dpa.SelfComposedDpEvent(event, count)


def composed(events: Iterable[DpEvent]) -> DpEvent:
    """All of these events, in any order."""
    return dpa.ComposedDpEvent(tuple(events))


def counted(events: Iterable[DpEvent]) -> DpEvent:
    """All of these events, equal ones together; a Counter says itself how often each happened."""
    return composed([repeated(event, count) for event, count in Counter(events).items()])


def leaves(event: DpEvent) -> Counter[DpEvent]:
    """The elementary events inside a composition, with how often each happened."""
    counts: Counter[DpEvent] = Counter()
    _collect(event, 1, counts)
    return counts


def _collect(event: DpEvent, times: int, counts: Counter[DpEvent]) -> None:
    if isinstance(event, dpa.ComposedDpEvent):
        for part in event.events:
            _collect(part, times, counts)
    elif isinstance(event, dpa.SelfComposedDpEvent):
        _collect(event.event, times * event.count, counts)
    elif not isinstance(event, dpa.NoOpDpEvent):
        counts[event] += times


def to_json(event: DpEvent) -> Json:
    """The event as plain JSON; the inverse of `from_json`.

    >>> to_json(poisson(0.25, gaussian(1.5)))
    {'poisson': 0.25, 'of': {'gaussian': 1.5}}
    """
    if isinstance(event, dpa.GaussianDpEvent):
        return {"gaussian": event.noise_multiplier}
    if isinstance(event, dpa.PoissonSampledDpEvent):
        return {"poisson": event.sampling_probability, "of": to_json(event.event)}
    if isinstance(event, BoundedGaussianDpEvent):
        return {"bounded-gaussian": event.noise_multiplier}
    if isinstance(event, dpa.SampledWithoutReplacementDpEvent):
        sizes = [event.sample_size, event.source_dataset_size]
        return {"subset": sizes, "of": to_json(event.event)}
    if isinstance(event, FixedOrderDpEvent):
        return {"fixed-order": to_json(event.event)}
    if isinstance(event, VisibleDpEvent):
        return {"visible": event.probability, "of": to_json(event.event)}
    if isinstance(event, ThinnedDpEvent):
        test = event.test.as_json()
        return {"thinned": event.coin, "test": test, "of": to_json(event.event)}
    if isinstance(event, AdaptiveDpEvent):
        return {"adaptive": event.order, "of": to_json(event.event)}
    if isinstance(event, FilterDpEvent):
        return {"filter": event.order, "limit": event.limit}
    if isinstance(event, RepeatAndSelectDpEvent):
        shape = "poisson" if math.isinf(event.shape) else event.shape
        runs = [to_json(run) for run in candidates_of(event)]
        return {"best-of": event.mean, "shape": shape, "runs": runs}
    if isinstance(event, dpa.SelfComposedDpEvent):
        return {"repeat": event.count, "of": to_json(event.event)}
    if isinstance(event, dpa.ComposedDpEvent):
        return {"all": [to_json(part) for part in event.events]}
    if isinstance(event, dpa.NoOpDpEvent):
        return {"nothing": True}
    if isinstance(event, dpa.NonPrivateDpEvent):
        return {"non-private": True}
    raise NoProofError(f"the ledger cannot hold the event {event!r}; no accountant here knows it")


def from_json(data: Json) -> DpEvent:
    """The event that `to_json` wrote."""
    match data:
        case {"gaussian": float() | int() as noise}:
            return gaussian(float(noise))
        case {"poisson": float() | int() as rate, "of": dict() as inner} if 0 < rate <= 1:
            return poisson(float(rate), from_json(inner))
        case {"bounded-gaussian": float() | int() as noise}:
            return bounded_gaussian(float(noise))
        case {"subset": [int() as size, int() as of], "of": dict() as inner}:
            return subset(size, of, from_json(inner))
        case {"fixed-order": dict() as inner}:
            return fixed_order(from_json(inner))
        case {"visible": float() | int() as rate, "of": dict() as inner} if 0 < rate <= 1:
            return visible(float(rate), from_json(inner))
        case {"thinned": float() | int() as coin, "test": dict() as test, "of": dict() as inner}:
            return thinned(from_json(inner), AcceptanceTest.from_json(test), float(coin))
        case {"adaptive": float() | int() as order, "of": dict() as inner}:
            return adaptive(from_json(inner), float(order))
        case {"filter": float() | int() as order, "limit": float() | int() as limit}:
            return filtered(float(order), float(limit))
        case {"best-of": float() | int() as mean, "shape": shape, "runs": [_, *_] as runs}:
            law = RunCount(float(mean), math.inf if shape == "poisson" else float(shape))
            return best_of([from_json(run) for run in runs], law)
        case {"repeat": int() as count, "of": dict() as inner} if count >= 0:
            return repeated(from_json(inner), count)
        case {"all": list() as parts}:
            return composed([from_json(part) for part in parts])
        case {"nothing": True}:
            return dpa.NoOpDpEvent()
        case {"non-private": True}:
            return dpa.NonPrivateDpEvent()
    raise NoProofError(f"{data!r} is not an event this version knows; refusing to account for it")
