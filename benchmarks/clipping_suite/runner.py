"""The order of things: try settings and check sums, then time everyone in turn, round by round."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from clipping_suite import job as job_module
from clipping_suite.contestants import CONTESTANTS, Entry
from clipping_suite.contestants.base import Setting
from clipping_suite.job import Answer, Job, Outcome
from clipping_suite.processes import Environment
from clipping_suite.torch_network import problem
from clipping_suite.worker import clipped_sum
from clipping_suite.workloads import Workload

Json = dict[str, Any]
NOT_RUN = "not run"
_TIME_IS_UP = "time was up"
_NO_CLIPPING = 1e30
_TRIED_STEPS = 2
"""Timed steps of a setting that is tried, at least, after one that may choose and compile."""
_CLOSE = 1.3
"""Settings that take up to so many times the fastest are tried again; the better time counts."""
_MAY_LOSE = 0.1
"""Of its speed, for whoever is to keep to a bound of memory."""


@dataclass(frozen=True)
class Plan:
    """How much is measured; the defaults give at least seven timed steps to everyone.

    Without `every_setting` only plain SGD tries its settings: neither we nor a peer may choose.
    """

    contestants: tuple[str, ...] = tuple(CONTESTANTS)
    rounds: int = 3
    steps: int = 3
    seconds: float = 1.0
    warmup: int = 3
    default_allocator: bool = True
    every_setting: bool = True
    threads: int = 2
    longest_step: float = 30.0
    tolerance: float = 5e-3
    """Rounding alone may send a gradient another way through ReLU and pooling: single precision
    differs from double by up to 4e-3 on the convnet; peers that are wrong, by 2e-2 or more."""


@dataclass
class Record:
    """Everything measured of one contestant on one workload."""

    entry: Entry
    status: str = NOT_RUN
    reason: str = _TIME_IS_UP
    setting: Setting = field(default_factory=Setting)
    deviation: float | None = None
    times: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    memory_with_warmup: list[float] = field(default_factory=list)
    untuned: Outcome | None = None
    tried: list[Outcome] = field(default_factory=list)

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


class Runner:
    """Measures workloads one after the other; `say` hears what is going on."""

    def __init__(self, plan: Plan, environment: Environment, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._environment = environment
        self._say = say
        self._until = math.inf
        self._plain_memory: float | None = None
        self.versions: dict[str, dict[str, str]] = {"ours": {}, "peers": {}}

    def measure(self, workload: Workload, allowed: float = math.inf) -> Json:
        """All contestants on one workload, in so many seconds.

        At most half of them go to trying settings; whoever has no turn in time is said so.
        """
        self._until = time.monotonic() + allowed / 2
        self._plain_memory = None
        folder = self._environment.folder
        job = Job(
            contestant="",
            workload=workload.name,
            problem=str(folder / f"{workload.name}.npz"),
            expected=str(folder / f"{workload.name}-expected.npz"),
            settings=(),
            scout=True,
            tuned=True,
            threads=self._plan.threads,
            steps=_TRIED_STEPS,
            warmup=1,
            seconds=min(self._plan.seconds, 1.0),
            longest_step=self._plan.longest_step,
            tolerance=self._plan.tolerance,
            batch=workload.batch,
        )
        prepare(workload, Path(job.problem), Path(job.expected))
        records = [Record(CONTESTANTS[name]) for name in self._plan.contestants]
        for record in self._in_time(records, f"{workload.name}: settings"):
            self._scout(record, job, workload)
        ready = [record for record in records if record.status == job_module.OK]
        self._until += allowed / 2
        timing = replace(
            job,
            scout=False,
            steps=self._plan.steps,
            warmup=self._plan.warmup,
            seconds=self._plan.seconds,
        )
        for number in range(self._plan.rounds):
            turn = number % max(len(ready), 1)
            order = [*ready[turn:], *ready[:turn]]
            for record in self._in_time(order, f"{workload.name}: round {number + 1}"):
                self._time(record, timing)
        if self._plan.default_allocator:
            untuned = [record for record in ready if record.entry.tuned]
            for record in self._in_time(untuned, f"{workload.name}: default allocator"):
                self._time_untuned(record, replace(timing, steps=7))
        for record in ready:
            if record.status == job_module.OK and not record.times:
                record.status, record.reason = NOT_RUN, _TIME_IS_UP
        return {
            "name": workload.name,
            "title": workload.title,
            "batch": workload.batch,
            "contestants": [record.as_json() for record in records],
        }

    def _in_time(self, records: Sequence[Record], what: str) -> Iterator[Record]:
        """The records whose turn still comes before the deadline."""
        for record in records:
            if time.monotonic() >= self._until:
                self._say(f"{what}: {record.entry.title}: time is up")
                continue
            if record.status in (NOT_RUN, job_module.OK):
                self._say(f"{what}: {record.entry.title}")
                yield record

    def _ask(self, job: Job) -> Answer:
        left = self._until - time.monotonic()
        if left >= self._environment.time_limit:
            return self._environment.ask(job)
        answer = replace(self._environment, time_limit=max(left, 0.0)).ask(job)
        for outcome in answer.outcomes:
            if outcome.status == job_module.NO_ANSWER:
                outcome.status, outcome.reason = NOT_RUN, _TIME_IS_UP
        return answer

    def _settings(self, entry: Entry, workload: Workload) -> tuple[Setting, ...]:
        settings = [Setting()]
        if not entry.fixed and (self._plan.every_setting or not entry.clips):
            layouts = (False, True) if workload.images else (False,)
            pieces = (None, workload.piece)
            settings = [Setting(last, piece) for last in layouts for piece in pieces]
        return tuple(settings)

    def _scout(self, record: Record, job: Job, workload: Workload) -> None:
        """Check every setting's sum, and keep the best setting that gives the right one."""
        entry, most = record.entry, None
        settings = self._settings(entry, workload)
        jobs = [settings]
        if entry.memory_aim is not None and self._plain_memory is not None:
            most = entry.memory_aim * self._plain_memory
            jobs = [(setting,) for setting in settings]  # memory is that of a process
        for tried in jobs:
            record.tried += self._tried(entry, job, tried)
        good = [outcome for outcome in record.tried if outcome.status == job_module.OK]
        for outcome in contenders(good):
            (again,) = self._tried(entry, job, (outcome.setting,))
            if again.status == job_module.OK and seconds(again) < seconds(outcome):
                outcome.times = again.times
        best = chosen(good, most) if good else record.tried[0]
        record.setting, record.status, record.reason = best.setting, best.status, best.reason
        record.deviation = best.deviation
        if entry.name == "plain-default":
            self._plain_memory = best.memory

    def _tried(self, entry: Entry, job: Job, settings: tuple[Setting, ...]) -> list[Outcome]:
        answer = self._ask(
            replace(job, contestant=entry.name, settings=settings, tuned=entry.tuned)
        )
        self.versions["peers" if entry.peer else "ours"].update(answer.versions)
        return answer.outcomes

    def _time(self, record: Record, job: Job) -> None:
        job = replace(job, contestant=record.entry.name, settings=(record.setting,))
        job = replace(job, tuned=record.entry.tuned)
        outcome = self._ask(job).outcomes[0]
        if outcome.status == NOT_RUN:
            return
        if outcome.status != job_module.OK:
            record.status, record.reason = outcome.status, outcome.reason
            return
        record.times += outcome.times
        record.memory.append(outcome.memory or 0.0)
        record.memory_with_warmup.append(outcome.memory_with_warmup or 0.0)

    def _time_untuned(self, record: Record, job: Job) -> None:
        job = replace(job, contestant=record.entry.name, settings=(record.setting,), tuned=False)
        record.untuned = self._ask(job).outcomes[0]


def seconds(outcome: Outcome) -> float:
    """The median time of a step."""
    return float(np.median(outcome.times))


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


def prepare(workload: Workload, path: Path, expected: Path | None = None) -> None:
    """Write a workload's weights and records, and the sums that our engine makes of them."""
    os.environ["TACIT_NATIVE"] = "0"
    given = problem(workload)
    given.save(path)
    if expected is None:
        return
    ours = CONTESTANTS["ours-torch"].builder()
    sums = {f"clipped/{k}": v for k, v in clipped_sum(ours, given, Setting()).items()}
    raw = clipped_sum(ours, given, Setting(), _NO_CLIPPING)
    arrays: dict[str, Any] = sums | {f"raw/{k}": v for k, v in raw.items()}
    np.savez(expected, **arrays)
