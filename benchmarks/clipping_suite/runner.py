"""The order of things: try settings and check sums, then time everyone in turn, round by round."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from clipping_suite import job as job_module
from clipping_suite.contestants import CONTESTANTS, Entry
from clipping_suite.contestants.base import Setting
from clipping_suite.job import Answer, Job, Outcome
from clipping_suite.processes import Environment, Seat
from clipping_suite.records import NOT_RUN, TIME_IS_UP, Record, chosen, contenders, fits, seconds
from clipping_suite.torch_network import problem
from clipping_suite.worker import clipped_sum
from clipping_suite.workloads import Workload

Json = dict[str, Any]
_NO_CLIPPING = 1e30
_TRIED_STEPS = 2
"""Timed steps of a setting that is tried, at least, after one that may choose and compile."""
_COMPARED, _COMPARED_FOR = 6, 2.0
"""Turns of settings that are close to the fastest, and seconds of steps in all of them."""


@dataclass(frozen=True)
class Plan:
    """How much is measured; the defaults give at least seven timed steps to everyone.

    A round has new processes, which take turns: what disturbs the machine for a while disturbs all.
    `steps` and `seconds` are for all turns of a round together.
    Without `every_setting` only plain SGD tries its settings: neither we nor a peer may choose.
    """

    contestants: tuple[str, ...] = tuple(CONTESTANTS)
    rounds: int = 3
    turns: int = 8
    steps: int = 3
    seconds: float = 2.0
    warmup: int = 3
    default_allocator: bool = True
    every_setting: bool = True
    threads: int = 2
    longest_step: float = 30.0
    tolerance: float = 5e-3
    """Rounding alone may send a gradient another way through ReLU and pooling: single precision
    differs from double by up to 4e-3 on the convnet; peers that are wrong, by 2e-2 or more."""


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
        timing = replace(job, scout=False, warmup=self._plan.warmup)
        together = fits([record.needed for record in ready])
        turns = self._plan.turns if together else 1
        for number in range(self._plan.rounds):
            self._round(ready, timing, turns, f"{workload.name}: round {number + 1}")
            ready = [*ready[1:], *ready[:1]]
        if self._plan.default_allocator:
            untuned = [record for record in ready if record.entry.tuned]
            for record in self._in_time(untuned, f"{workload.name}: default allocator"):
                alone = replace(timing, steps=7, seconds=self._plan.seconds)
                self._time_untuned(record, alone)
        for record in ready:
            if record.status == job_module.OK and not record.times:
                record.status, record.reason = NOT_RUN, TIME_IS_UP
        return {
            "name": workload.name,
            "title": workload.title,
            "batch": workload.batch,
            "contestants": [record.as_json() for record in records],
        }

    def _round(self, records: Sequence[Record], timing: Job, turns: int, what: str) -> None:
        """New processes for everyone, which take turns."""
        present = [*self._in_time(records, what)]
        timing = replace(
            timing, steps=-(-self._plan.steps // turns), seconds=self._plan.seconds / turns
        )
        jobs = [
            replace(timing, contestant=r.entry.name, settings=(r.setting,), tuned=r.entry.tuned)
            for r in present
        ]
        for place, outcome in self._in_turns(jobs, turns):
            present[place].take(outcome)

    def _in_turns(self, jobs: Sequence[Job], turns: int) -> Iterator[tuple[int, Outcome]]:
        """The outcomes of jobs that take turns, in another order each time, until time is up."""
        seats: dict[int, Seat] = {}
        with ExitStack() as stack:
            for turn in range(turns):
                for following in range(len(jobs)):
                    place = (turn + following) % len(jobs)
                    if time.monotonic() >= self._until or (turn and place not in seats):
                        continue
                    if not turn:
                        seats[place] = stack.enter_context(self._environment.seat(jobs[place]))
                    outcome = self._turn(seats[place]).outcomes[0]
                    yield place, outcome
                    if turn == turns - 1 or outcome.status != job_module.OK:
                        seats.pop(place).leave()

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
        with self._environment.seat(job) as seat:
            return self._turn(seat)

    def _turn(self, seat: Seat) -> Answer:
        left, limit = self._until - time.monotonic(), self._environment.time_limit
        answer = seat.turn(min(limit, max(left, 0.0)))
        for outcome in answer.outcomes:
            if left < limit and outcome.status == job_module.NO_ANSWER:
                outcome.status, outcome.reason = NOT_RUN, TIME_IS_UP
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
        self._compare(contenders(good), replace(job, contestant=entry.name, tuned=entry.tuned))
        best = chosen(good, most) if good else record.tried[0]
        record.setting, record.status, record.reason = best.setting, best.status, best.reason
        record.deviation, record.needed = best.deviation, best.memory_with_warmup or 0.0
        if entry.name == "plain-default":
            self._plain_memory = best.memory

    def _compare(self, outcomes: Sequence[Outcome], job: Job) -> None:
        """Time settings that are close once more, in turns where they fit into memory together."""
        turns = 1
        if fits([outcome.memory_with_warmup or 0.0 for outcome in outcomes]):
            longest = max(map(seconds, outcomes), default=0.0)
            turns = max(1, min(_COMPARED, int(_COMPARED_FOR / max(longest, 1e-3))))
        job = replace(job, scout=False, seconds=_COMPARED_FOR / _COMPARED)
        found: list[list[float]] = [[] for _ in outcomes]
        jobs = [replace(job, settings=(outcome.setting,)) for outcome in outcomes]
        for place, outcome in self._in_turns(jobs, turns):
            found[place] += outcome.times
        for outcome, times in zip(outcomes, found, strict=True):
            outcome.times = times or outcome.times

    def _tried(self, entry: Entry, job: Job, settings: tuple[Setting, ...]) -> list[Outcome]:
        answer = self._ask(
            replace(job, contestant=entry.name, settings=settings, tuned=entry.tuned)
        )
        self.versions["peers" if entry.peer else "ours"].update(answer.versions)
        return answer.outcomes

    def _time_untuned(self, record: Record, job: Job) -> None:
        job = replace(job, contestant=record.entry.name, settings=(record.setting,), tuned=False)
        record.untuned = self._ask(job).outcomes[0]


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
