"""Choosing between exact algorithms: by measurement, or by a fixed estimate of their cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from torch import Tensor

_REPEATS = 2
_HOPELESS = 3.0
_NOT_WORTH_A_TRIAL = 12.0
_measured: dict[Hashable, dict[str, float]] = {}


@dataclass(frozen=True)
class Algorithm:
    """One exact way to the squared norms of all records.

    `run` does it, and leaves behind what the weighted sum needs. `trial` does as much work per
    record on a part of the batch, the weighted sum included. `cost` estimates that work in
    multiplications per record, `memory` is what `run` needs beyond its operands, in bytes.
    """

    name: str
    cost: float
    memory: int
    run: Callable[[], Tensor]
    trial: Callable[[], object]


class Chooser:
    """Picks the fastest algorithm that stays below a memory ceiling.

    Times are measured once per key and kept for the life of the process. A deterministic chooser
    never looks at a clock, so that the same shapes take the same path in every process.
    """

    def __init__(self, *, deterministic: bool, memory_ceiling: int) -> None:
        self.memory_ceiling = memory_ceiling
        self._deterministic = deterministic

    def pick(self, key: Hashable, algorithms: Sequence[Algorithm]) -> Algorithm:
        """The algorithm to use; where none stays below the ceiling, the one that needs least."""
        fitting = [a for a in algorithms if a.memory <= self.memory_ceiling]
        if not fitting:
            return min(algorithms, key=lambda a: a.memory)
        if len(fitting) == 1:
            return fitting[0]
        if self._deterministic:
            return min(fitting, key=lambda a: a.cost)
        times = _measured.setdefault(key, {})
        least = min(a.cost for a in fitting)
        fitting = [a for a in fitting if a.cost <= _NOT_WORTH_A_TRIAL * least]
        for algorithm in fitting:
            if algorithm.name not in times:
                times[algorithm.name] = _time(algorithm.trial, min(times.values(), default=1e9))
        return min(fitting, key=lambda a: times[a.name])


def _time(trial: Callable[[], object], best: float) -> float:
    """Seconds that the quickest of a few trials takes; one is enough for a hopeless case."""
    shortest = float("inf")
    for attempt in range(1 + _REPEATS):
        start = time.perf_counter()
        trial()
        elapsed = time.perf_counter() - start
        if elapsed > _HOPELESS * best:
            return elapsed
        if attempt:
            shortest = min(shortest, elapsed)
    return shortest
