"""Choosing between exact algorithms: by measurement, or by a fixed estimate of their cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
_REPEATS = 2
_measured: dict[Hashable, str] = {}


@dataclass(frozen=True)
class Algorithm(Generic[T]):
    """One exact way to the same result: what it costs, and how to run it."""

    name: str
    operations: float
    scratch: int
    run: Callable[[], T]


class Chooser:
    """Picks the cheapest algorithm whose scratch memory stays below a ceiling.

    Measured choices are kept for the life of the process. A deterministic chooser never looks at
    a clock, so that the same shapes always take the same path.
    """

    def __init__(self, *, deterministic: bool, memory_ceiling: int) -> None:
        self.deterministic = deterministic
        self.memory_ceiling = memory_ceiling

    def pick(self, key: Hashable, algorithms: Sequence[Algorithm[T]]) -> Algorithm[T]:
        """The algorithm to use for operands that `key` describes; the last resort comes last."""
        fitting = [a for a in algorithms if a.scratch <= self.memory_ceiling]
        if not fitting:
            return min(algorithms, key=lambda a: a.scratch)
        if len(fitting) == 1:
            return fitting[0]
        if self.deterministic:
            return min(fitting, key=lambda a: a.operations)
        known = _measured.get(key)
        for algorithm in fitting:
            if algorithm.name == known:
                return algorithm
        best = _fastest(fitting)
        _measured[key] = best.name
        return best


def bucket(count: int) -> int:
    """Batch sizes within a factor of two share a choice: Poisson batches differ at every step."""
    return count.bit_length()


def _fastest(algorithms: Sequence[Algorithm[T]]) -> Algorithm[T]:
    best, shortest = algorithms[0], float("inf")
    for algorithm in algorithms:
        for attempt in range(1 + _REPEATS):
            start = time.perf_counter()
            algorithm.run()
            elapsed = time.perf_counter() - start
            if attempt and elapsed < shortest:
                best, shortest = algorithm, elapsed
            if elapsed > 4 * shortest:
                break
    return best
