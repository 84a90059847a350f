"""Plans: solve for whichever one of ε, noise, steps, batch size or records is left out.

A plan never rounds in the user's favour: solved noise is rounded up, solved steps and batch sizes
down, solved records up, and the ε shown is that of the rounded setting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from dp_accounting import DpEvent
from scipy.optimize import brentq

from tacit.errors import ArgumentError
from tacit.privacy import accountants, claims, events
from tacit.privacy.accountants import Accountant
from tacit.privacy.relations import Relation

_SMALLEST_NOISE, _LARGEST_NOISE = 0.05, 1e4
_NOISE_DIGITS = 3e-6
MOST_STEPS = 10**7
_MOST_RECORDS = 10**10


@dataclass(frozen=True)
class SampledSchedule:
    """Steps of equal Gaussian noise on Poisson samples: what DP-SGD promises."""

    records: int
    batch_size: float
    steps: int
    noise: float

    @property
    def probability(self) -> float:
        """The rate at which each record is sampled."""
        return events.sampling_probability(self.records, self.batch_size)

    @property
    def epochs(self) -> float:
        """Expected passes over the data."""
        return self.steps * self.batch_size / self.records

    def step_event(self) -> DpEvent:
        """What one step releases."""
        return events.poisson(self.probability, events.gaussian(self.noise))

    def charge(self, step: int) -> DpEvent:
        """The same for every step."""
        return self.step_event()

    def event(self) -> DpEvent:
        """What the whole schedule releases."""
        return events.repeated(self.step_event(), self.steps)

    def proven(
        self, delta: float, relation: Relation, accountant: Accountant = Accountant.PLD
    ) -> float:
        """ε of the whole schedule."""
        return accountants.epsilon(self.event(), delta, relation, accountant)

    def claimed(self, delta: float) -> claims.Claim:
        """What paper 002 would say of it."""
        return claims.dpsgd(self.probability, self.noise, self.steps, delta)


def steps_for(epochs: float, records: int, batch_size: float) -> int:
    """Steps that pass over the data `epochs` times in expectation, rounded up.

    >>> steps_for(20, 60_000, 256)
    4688
    """
    if not (epochs > 0 and math.isfinite(epochs)):
        raise ArgumentError(f"epochs is {epochs}; it must be a positive number")
    return math.ceil(epochs * records / batch_size - 1e-9)


_EXAMPLES = {
    "noise": "noise 1",
    "epsilon": "epsilon 3",
    "epochs": "epochs 20",
    "steps": "epochs 20",
    "batch_size": "batch_size 256",
    "records": "records 60000",
}


def the_unknown(values: Mapping[str, float | None]) -> str:
    """The one value that is left out, to be solved for; an error names all that are, or none.

    >>> the_unknown({"epsilon": 3.0, "noise": None, "epochs": 20.0})
    'noise'
    """
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == 1:
        return missing[0]
    spoken = {name: "epochs (or steps)" if name == "steps" else name for name in values}
    if not missing:
        raise ArgumentError(
            f"{_listed(spoken.values())} are all given; leave out the one to solve for"
        )
    solved = next(name for name in _EXAMPLES if name in missing)
    example = _listed(_EXAMPLES[name] for name in missing if name != solved)
    raise ArgumentError(
        f"{_listed(spoken[name] for name in missing)} are missing, and only one value can be"
        f" solved for: give {len(missing) - 1} of these {len(missing)}, such as {example} to solve"
        f" for {spoken[solved]}"
    )


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


@dataclass(frozen=True)
class Question:
    """A setting in which at most one value is unknown; give epochs or steps, not both."""

    delta: float
    epsilon: float | None = None
    noise: float | None = None
    epochs: float | None = None
    steps: int | None = None
    batch_size: float | None = None
    records: int | None = None
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        accountants.check_delta(self.delta)
        for name in ("epsilon", "noise", "epochs", "steps", "batch_size", "records"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ArgumentError(f"{name} is {value}; it must be a positive finite number")
        if self.epochs is not None and self.steps is not None:
            raise ArgumentError("epochs and steps are both given; leave one of them out")
        if self.batch_size and self.records and self.batch_size > self.records:
            raise ArgumentError(
                f"batch_size is {self.batch_size:g}, larger than the {self.records} records;"
                " choose a batch no larger than the data"
            )

    def unknown(self) -> str:
        """The one value to solve for."""
        return the_unknown(
            {
                "epsilon": self.epsilon,
                "noise": self.noise,
                "steps": self.steps if self.epochs is None else self.epochs,
                "batch_size": self.batch_size,
                "records": self.records,
            }
        )


def solve(question: Question) -> SampledSchedule:
    """The schedule that answers the question, within its ε where one is given.

    >>> answer = solve(Question(delta=1e-5, epsilon=3, epochs=20, batch_size=256, records=60_000))
    >>> 2.99 <= answer.proven(1e-5, Relation.ADD_OR_REMOVE_ONE) <= 3
    True
    """
    unknown = question.unknown()
    if unknown == "epsilon":
        return _schedule(question)
    return _SOLVERS[unknown](question)


def _schedule(q: Question) -> SampledSchedule:
    if q.records is None or q.batch_size is None or q.noise is None:
        raise ArgumentError("records, batch_size and noise must be known here")
    steps = q.steps
    if steps is None:
        steps = steps_for(q.epochs or 0, q.records, q.batch_size)
    return SampledSchedule(q.records, q.batch_size, steps, q.noise)


def _proven(q: Question) -> float:
    return _schedule(q).proven(q.delta, q.relation)


def _fits(q: Question) -> bool:
    if q.epsilon is None:
        raise ArgumentError("epsilon must be known here")
    return _proven(q) <= q.epsilon


def _noise(q: Question) -> SampledSchedule:
    if q.epsilon is None:
        raise ArgumentError("epsilon must be known here")
    noise = least_noise(lambda noise: _proven(replace(q, noise=noise)), q.epsilon)
    return _schedule(replace(q, noise=noise))


def least_noise(cost: Callable[[float], float], epsilon: float) -> float:
    """The least noise whose ε, `cost(noise)`, is at most `epsilon`, to five digits, rounded up.

    `cost` must not increase with the noise.
    """

    @cache
    def excess(log_noise: float) -> float:
        found = cost(math.exp(log_noise))
        return math.log(max(min(found / epsilon, 1e300), 1e-300))

    low, high = _bracket(lambda noise: excess(math.log(noise)) <= 0, epsilon)
    low, high = math.log(low), math.log(high)
    root = brentq(excess, low, high, xtol=_NOISE_DIGITS) if excess(low) > 0 else low
    noise = up_to_digits(math.exp(root + 2 * _NOISE_DIGITS), 6)
    while cost(noise) > epsilon:
        noise = up_to_digits(noise * (1 + 1e-5), 6)
    return noise


def _bracket(fits: Callable[[float], bool], epsilon: float) -> tuple[float, float]:
    """Two noises at most a factor of two apart, of which the larger fits."""
    low, high = _SMALLEST_NOISE, 1.0
    while not fits(high):
        low, high = high, high * 2
        if high > _LARGEST_NOISE:
            raise ArgumentError(
                f"epsilon is {epsilon}; even noise {_LARGEST_NOISE:g} does not reach it. Ask for"
                " fewer epochs, a smaller batch or a larger epsilon"
            )
    while low < high / 2 and fits(high / 2):
        high /= 2
    return max(low, high / 2), high


def _steps(q: Question) -> SampledSchedule:
    best = largest(1, MOST_STEPS, lambda n: _fits(replace(q, steps=n, epochs=None)))
    if best is None:
        raise ArgumentError(
            f"epsilon is {q.epsilon}; a single step with noise {q.noise} already exceeds it. Use"
            " more noise or a smaller batch"
        )
    if best == MOST_STEPS:
        raise ArgumentError(
            f"epsilon is {q.epsilon}; noise {q.noise} allows more than {MOST_STEPS:,} steps. Use"
            " less noise or a smaller epsilon"
        )
    return _schedule(replace(q, steps=best, epochs=None))


def _batch_size(q: Question) -> SampledSchedule:
    """Halve from the whole dataset until it fits: small batches mean many steps to compose."""
    if q.records is None:
        raise ArgumentError("records must be known here")

    def holds(size: int) -> bool:
        return _fits(replace(q, batch_size=size))

    good = misfit = q.records
    while not holds(good):
        good, misfit = good // 2, good
        if good == 0:
            raise ArgumentError(
                f"epsilon is {q.epsilon}; even batches of one expected record exceed it. Use more"
                " noise or fewer epochs"
            )
    return _schedule(replace(q, batch_size=_between(good, misfit, holds)))


def _records(q: Question) -> SampledSchedule:
    """More records mean a smaller sampling rate; the fewest that fit."""
    start = math.ceil(q.batch_size or 1)
    misfit = largest(start, _MOST_RECORDS, lambda n: not _fits(replace(q, records=n)))
    if misfit == _MOST_RECORDS:
        raise ArgumentError(f"epsilon is {q.epsilon}; no number of records reaches it")
    return _schedule(replace(q, records=start if misfit is None else misfit + 1))


_SOLVERS: dict[str, Callable[[Question], SampledSchedule]] = {
    "noise": _noise,
    "steps": _steps,
    "batch_size": _batch_size,
    "records": _records,
}


def largest(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """The largest whole number in [low, high] for which a decreasing property holds."""
    if not holds(low):
        return None
    good, step = low, 1
    while good + step <= high and holds(good + step):
        good, step = good + step, step * 2
    return _between(good, min(good + step, high + 1), holds)


def _between(good: int, bad: int, holds: Callable[[int], bool]) -> int:
    """The last whole number from `good` on, below `bad`, for which the property holds."""
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def up_to_digits(value: float, digits: int) -> float:
    """The next number of so many significant digits, never below."""
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    return math.ceil(value * scale) / scale
