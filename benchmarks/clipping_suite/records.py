"""What is measured of a contestant, and which of its settings it goes on with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from clipping_suite import job as job_module
from clipping_suite.contestants import Entry
from clipping_suite.contestants.base import Setting
from clipping_suite.job import Outcome
from clipping_suite.machine import total_megabytes

Json = dict[str, Any]
NOT_RUN = "not run"
TIME_IS_UP = "time was up"
_CLOSE = 1.3
"""Settings that take up to so many times the fastest are compared once more."""
_EVERY_PROCESS, _OF_MEMORY = 500.0, 0.6
"""Megabytes of a process besides what it needs for steps, and how much of memory all may take."""
_MAY_LOSE = 0.1
"""Of its speed, for whoever is to keep to a bound of memory."""


@dataclass
class Record:
    """Everything measured of one contestant on one workload."""

    entry: Entry
    status: str = NOT_RUN
    reason: str = TIME_IS_UP
    setting: Setting = field(default_factory=Setting)
    deviation: float | None = None
    times: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    memory_with_warmup: list[float] = field(default_factory=list)
    needed: float = 0.0
    """Megabytes that the chosen setting took when it was tried."""
    untuned: Outcome | None = None
    tried: list[Outcome] = field(default_factory=list)

    def take(self, outcome: Outcome) -> None:
        """Add what a turn has measured."""
        if outcome.status == NOT_RUN:
            return
        if outcome.status != job_module.OK:
            self.status, self.reason = outcome.status, outcome.reason
            return
        self.times += outcome.times
        self.memory.append(outcome.memory or 0.0)
        self.memory_with_warmup.append(outcome.memory_with_warmup or 0.0)

    def as_json(self) -> Json:
        """Plain values for the results file."""
        return {
            "name": self.entry.name,
            "title": self.entry.title,
            "family": self.entry.family,
            "status": self.status,
            "reason": self.reason,
            "setting": self.setting.label(),
            "deviation": self.deviation,
            "times": self.times,
            "memory": max(self.memory, default=None),
            "memory_with_warmup": max(self.memory_with_warmup, default=None),
            "default_allocator": _brief(self.untuned) if self.untuned else None,
            "tried": [_brief(outcome) for outcome in self.tried],
        }


def _brief(outcome: Outcome) -> Json:
    return asdict(outcome) | {"setting": outcome.setting.label()}


def seconds(outcome: Outcome) -> float:
    """The median time of a step."""
    return float(np.median(outcome.times))


def fits(megabytes: Sequence[float]) -> bool:
    """Whether processes that need so much for their steps may be there at the same time."""
    return sum(each + _EVERY_PROCESS for each in megabytes) < _OF_MEMORY * total_megabytes()


def contenders(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those among several that a slow moment of the machine may have put behind, or in front."""
    fastest = min(map(seconds, outcomes), default=0.0)
    close = [outcome for outcome in outcomes if seconds(outcome) <= _CLOSE * fastest]
    return close if len(close) > 1 else []


def chosen(outcomes: Sequence[Outcome], most: float | None) -> Outcome:
    """The fastest; where memory is bounded, the fastest that keeps to it, if not far behind."""
    fastest = min(outcomes, key=seconds)
    if most is None:
        return fastest
    limit = (1 + _MAY_LOSE) * seconds(fastest)
    fitting = [o for o in outcomes if (o.memory or 0.0) <= most and seconds(o) <= limit]
    return min(fitting, key=seconds, default=fastest)
