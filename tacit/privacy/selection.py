"""What it costs to release the best of several private runs and to hide the others.

How many runs there are is random, by a law fixed in advance, and is itself hidden (Papernot and
Steinke 2022). The cost grows with the logarithm of the expected number of runs, where releasing
all of them would cost a multiple. Proof: docs/proofs/selection.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count

import numpy as np
from dp_accounting import DpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from numpy.typing import NDArray
from scipy.optimize import brentq

from tacit.errors import ArgumentError

Array = NDArray[np.float64]

NAMED_SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "poisson": math.inf}
_MOST_RUNS, _LARGEST_SHAPE = 500, 100.0
_EPSILONS = np.concatenate([np.linspace(0, 1, 81), np.geomspace(1.02, 40, 120)])
"""Where the bound looks at one run's δ; any choice is sound."""


@dataclass(frozen=True)
class RunCount:
    """The law of the number of runs, by its mean and its shape η.

    Truncated negative binomial, which is the geometric law at η = 1 and the logarithmic one at
    η = 0; at η = ∞ the Poisson law, which may give no run at all. The larger η, the closer the
    number stays to its mean.
    """

    mean: float
    shape: float

    def __post_init__(self) -> None:
        if not 1 <= self.mean <= _MOST_RUNS:
            raise ArgumentError(
                f"the expected number of runs is {self.mean}; choose 1 to {_MOST_RUNS}"
            )
        if not (0 <= self.shape <= _LARGEST_SHAPE or self.shape == math.inf):
            raise ArgumentError(
                f"the shape of the number of runs is {self.shape}; choose 0 to {_LARGEST_SHAPE:g},"
                f" or one of {', '.join(NAMED_SHAPES)}"
            )

    @property
    def name(self) -> str:
        """The law in a word or two."""
        named = [name for name, shape in NAMED_SHAPES.items() if shape == self.shape]
        return named[0] if named else f"truncated negative binomial, shape {self.shape:g}"

    @cached_property
    def stop(self) -> float:
        """γ, the parameter of the truncated negative binomial; its mean is at most `mean`."""
        if self.mean == 1:
            return 1.0
        if self.shape == 1:
            return 1 / self.mean
        found = brentq(lambda log: _mean(math.exp(log), self.shape) - self.mean, -40.0, -1e-12)
        gamma = math.exp(float(found))
        while _mean(gamma, self.shape) > self.mean:
            gamma = min(1.0, gamma * (1 + 1e-12))
        return gamma

    def chances(self) -> Iterator[float]:
        """The probability of 0, 1, 2, … runs."""
        if math.isinf(self.shape):
            chance = math.exp(-self.mean)
            for runs in count(1):
                yield chance
                chance *= self.mean / runs
        yield 0.0
        gamma, shape = self.stop, self.shape
        if gamma == 1:
            yield 1.0
            return
        rest = 1 - gamma
        chance = -rest / math.log(gamma) if shape == 0 else shape * rest / (gamma**-shape - 1)
        for runs in count(1):
            yield chance
            chance *= rest * (runs + shape) / (runs + 1)

    def drawn(self, uniform: float) -> int:
        """The number of runs that belongs to a uniform number from [0, 1).

        >>> [RunCount(10, 1.0).drawn(u) for u in (0.0, 0.5, 0.99)]
        [1, 7, 44]
        """
        below, runs = 0.0, 0
        for runs, chance in enumerate(self.chances()):
            below += chance
            if uniform < below or (runs > self.mean and chance < 1e-18):
                break
        return runs

    def divergences(self, orders: Array, one: Array, delta: Callable[[float], float]) -> Array:
        """Rényi divergences of the best run, from those of one run and its δ at every ε.

        `one` and `delta` must hold for both directions of the neighbouring relation.
        """
        above = orders - 1
        if math.isinf(self.shape):
            slack = np.array([delta(float(np.log1p(1 / each))) for each in above])
            return np.asarray(one + self.mean * slack + math.log(self.mean) / above)
        worst = (1 + self.shape) * self._worst(orders, np.array([delta(e) for e in _EPSILONS]))
        return np.asarray(one + (math.log(self.mean) + worst) / above)

    def _worst(self, orders: Array, deltas: Array) -> Array:
        """The largest of log(γ·u^(−α)·u'^(α−1)) with u = γ + (1−γ)p, u' = γ + (1−γ)p', over all
        chances p and p' of an event on neighbouring records: p' ≤ e^ε·p + δ(ε)."""
        gamma, order = self.stop, orders[:, None]
        if gamma == 1:
            return np.zeros_like(orders)
        tilt, rest = np.exp(_EPSILONS), 1 - gamma
        highest = ((order - 1) * tilt * gamma - order * (gamma + rest * deltas)) / (tilt * rest)
        p = np.maximum(0.0, highest)
        log = np.log(gamma) - order * np.log(gamma + rest * p)
        log = log + (order - 1) * np.log(gamma + rest * (tilt * p + deltas))
        return np.asarray(log.min(axis=1))


def _mean(gamma: float, shape: float) -> float:
    """Expected number of runs of a truncated negative binomial.

    >>> round(_mean(0.1, 1.0), 9)
    10.0
    """
    if gamma == 1:
        return 1.0
    if shape == 0:
        return (1 - 1 / gamma) / math.log(gamma)
    return shape * (1 - gamma) / (gamma * -math.expm1(shape * math.log(gamma)))


@dataclass(frozen=True)
class OneOfDpEvent(DpEvent):
    """One of these events, chosen without a look at the records; which one is released too."""

    events: tuple[DpEvent, ...]


def best_of(candidates: Iterable[DpEvent], runs: RunCount) -> DpEvent:
    """The best of so many runs, each one of the candidates; the others and their number hidden."""
    distinct = tuple(sorted(set(candidates), key=repr))
    one = distinct[0] if len(distinct) == 1 else OneOfDpEvent(distinct)
    return RepeatAndSelectDpEvent(one, runs.mean, runs.shape)


def candidates_of(event: RepeatAndSelectDpEvent) -> tuple[DpEvent, ...]:
    """What any one of the runs may be."""
    return event.event.events if isinstance(event.event, OneOfDpEvent) else (event.event,)
