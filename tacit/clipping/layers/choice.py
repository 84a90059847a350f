"""Choosing between exact algorithms: by measurement, or by a fixed estimate of their cost."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

_REPEATS, _MOST_REPEATS = 2, 10
_ENOUGH_SECONDS = 0.01
"""A trial is repeated for at least so long, unless it has had its most repeats."""
_HOPELESS = 3.0
_CLOSE, _DECIDING_ROUNDS = 1.4, 2
"""Algorithms that took at most so many times as long as the fastest are tried again, in turn: the
machine may have been held up during all trials of one of them."""
_NOT_WORTH_A_TRIAL = 12.0
_TOO_LITTLE_TO_TIME = 1e6
"""Multiplications that take some ten microseconds: a clock would tell of nothing but chance."""
_FEW_RECORDS = 32
_ENOUGH_WORK = 3e7
"""Multiplications of a trial, if there are so many: calls of torch would decide shorter ones."""
_CACHED = 16 << 20
_WORTH_KEEPING = 0.85
"""Gradients that do not fit into a cache are kept if that takes at most such a part of the time."""
_measured: dict[Hashable, dict[str, float]] = {}


@dataclass(frozen=True)
class Algorithm:
    """One exact way to the squared norms of all records.

    `run` does it, and leaves behind what the weighted sum needs: every record's gradient where it
    `keeps` them, nothing otherwise. `trial` does the same for so many records, the weighted sum
    included. `cost` estimates that work in multiplications per record, `memory` is what `run`
    needs beyond its operands, in bytes.
    """

    name: str
    cost: float
    memory: int
    keeps: bool
    run: Callable[[], Tensor]
    trial: Callable[[int], object]


class Chooser:
    """Picks the fastest algorithm that stays below a memory ceiling.

    Times are measured once per key and kept for the life of the process. A deterministic chooser
    never looks at a clock, so that the same shapes take the same path in every process.
    """

    def __init__(self, *, deterministic: bool, memory_ceiling: int) -> None:
        self.memory_ceiling = memory_ceiling
        self.settled: dict[Hashable, Any] = {}
        """What was made of earlier choices, for those who need not ask again."""
        self._deterministic = deterministic

    def pick(self, key: Hashable, records: int, algorithms: Sequence[Algorithm]) -> Algorithm:
        """The algorithm to use; where none stays below the ceiling, the one that needs least."""
        fitting = [a for a in algorithms if a.memory <= self.memory_ceiling]
        if not fitting:
            return min(algorithms, key=lambda a: a.memory)
        if len(fitting) == 1:
            return fitting[0]
        cheapest = min(fitting, key=lambda a: a.cost)
        least = cheapest.cost
        if self._deterministic or records * least < _TOO_LITTLE_TO_TIME:
            return cheapest
        fitting = [a for a in fitting if a.cost <= _NOT_WORTH_A_TRIAL * least]
        few = min(records, max(_FEW_RECORDS, math.ceil(_ENOUGH_WORK / least)))
        finalists = [
            self._fastest(alike, (key, few), few)
            for keeps in (False, True)
            if (alike := [a for a in fitting if a.keeps is keeps])
        ]
        if max(a.memory for a in finalists) <= _CACHED:
            return self._fastest(finalists, (key, few), few)
        if len(finalists) == 1:
            return finalists[0]
        # What is kept leaves the processor's cache: only all records tell.
        again, kept = finalists
        times = self._times(finalists, (key, records, "all"), records)
        return kept if times[kept.name] < _WORTH_KEEPING * times[again.name] else again

    def _fastest(self, algorithms: Sequence[Algorithm], key: Hashable, records: int) -> Algorithm:
        times = self._times(algorithms, key, records)
        return min(algorithms, key=lambda a: times[a.name])

    def _times(
        self, algorithms: Sequence[Algorithm], key: Hashable, records: int
    ) -> Mapping[str, float]:
        """Seconds that each algorithm took for so many records when it was tried."""
        times = _measured.setdefault(key, {})
        untried = [a for a in algorithms if a.name not in times]
        for algorithm in untried:
            best = min(times.values(), default=math.inf)
            times[algorithm.name] = _time(algorithm.trial, records, best)
            give_back_memory()
        best = min(times[a.name] for a in algorithms)
        close = [a for a in algorithms if times[a.name] <= _CLOSE * best]
        for each in close * _DECIDING_ROUNDS if untried and len(close) > 1 else ():
            again = _time(each.trial, records, times[each.name])
            times[each.name] = min(times[each.name], again)
            give_back_memory()
        return times


def _time(trial: Callable[[int], object], records: int, best: float) -> float:
    """Seconds that the quickest of a few trials takes; fewer are enough for a hopeless case.

    The first is not timed: it meets memory and code for the first time.
    """
    trial(records)
    taken: list[float] = []
    while len(taken) < _REPEATS or (len(taken) < _MOST_REPEATS and sum(taken) < _ENOUGH_SECONDS):
        start = time.perf_counter()
        trial(records)
        taken.append(time.perf_counter() - start)
        if len(taken) >= _REPEATS and min(taken) > _HOPELESS * best:
            break
    return min(taken)


def give_back_memory() -> None:
    """Return what was taken and freed to the system, where the C library knows how (glibc)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return
