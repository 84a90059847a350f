"""The process of one contestant: python -m clipping_suite.worker JOB ANSWER."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch

from clipping_suite import job as job_module
from clipping_suite.contestants import CONTESTANTS
from clipping_suite.contestants.base import (
    AbsentError,
    Builder,
    Contestant,
    Setting,
    Step,
    UnsupportedError,
)
from clipping_suite.job import Answer, Job, Outcome
from clipping_suite.machine import PeakMemory, hold_to, tune_allocator
from clipping_suite.workloads import Problem, Weights, named

_PACKAGES = ("torch", "numpy", "opacus", "jax", "jaxlib", "jax_privacy", "transformers")
_MOST_STEPS = 200
_SETTLED = 0.02
"""Seconds of steps at the beginning of a turn that do not count, one at least."""


class TooSlowError(Exception):
    """A step took longer than the cap."""


@dataclass(frozen=True)
class Cap:
    """The longest a step may take, in seconds."""

    seconds: float

    def timed(self, contestant: Contestant) -> float:
        """Seconds that one step takes."""
        start = time.perf_counter()
        contestant.step()
        elapsed = time.perf_counter() - start
        if elapsed > self.seconds:
            raise TooSlowError(f"a step took {elapsed:.1f} s, more than {self.seconds:g} s")
        return elapsed


class Clock:
    """Times the steps of one contestant in one setting, turn by turn."""

    def __init__(self, job: Job, setting: Setting) -> None:
        self.setting = setting
        self._job = job
        self._cap = Cap(job.longest_step)
        self._memory: PeakMemory
        self._with_warmup = 0.0

    @cached_property
    def builder(self) -> Builder:
        """Of the contestant."""
        return CONTESTANTS[self._job.contestant].builder()

    @cached_property
    def problem(self) -> Problem:
        """Weights, records and labels."""
        return Problem.load(named(self._job.workload, self._job.batch), Path(self._job.problem))

    @cached_property
    def _contestant(self) -> Contestant:
        """Made, and warmed up, for the first turn."""
        made = self.builder(self.problem, self.setting, Step(self.problem.workload.clip))
        self._memory = PeakMemory()
        for number in range(self._job.warmup):
            if number == 0:
                made.step()  # may compile, or choose between algorithms: not capped
            else:
                self._cap.timed(made)
        if self._job.warmup:
            self._with_warmup = self._memory.megabytes()
            self._memory.forget_peak()
        return made

    def turn(self, outcome: Outcome) -> None:
        """Time steps, after some that bring back what others have put out of the caches."""
        job, contestant, taken = self._job, self._contestant, 0.0
        while taken < _SETTLED:
            taken += self._cap.timed(contestant)
        stop = time.perf_counter() + job.seconds
        while len(outcome.times) < job.steps or (
            time.perf_counter() < stop and len(outcome.times) < _MOST_STEPS
        ):
            outcome.times.append(self._cap.timed(contestant))
        outcome.memory = self._memory.megabytes()
        outcome.memory_with_warmup = max(outcome.memory, self._with_warmup)


def run(job: Job, path: Path) -> None:
    """Do the job once."""
    next(turns(job, path))


def turns(job: Job, path: Path) -> Iterator[None]:
    """Do the job each time that an item is asked for, with the same contestants.

    Whatever goes wrong with a contestant is an outcome, not an error. The answer is written after
    every setting, so that a process stopped half way has told what it knows.
    """
    hold_to(job.threads)
    torch.set_num_threads(job.threads)
    tuned = job.tuned and tune_allocator()
    versions = _versions()
    clocks = [Clock(job, setting) for setting in job.settings]
    while True:
        answer = Answer([], versions)
        for clock in clocks:
            outcome = _outcome(job, clock)
            outcome.tuned = tuned
            answer.outcomes.append(outcome)
            answer.write(path)
        yield


def _outcome(job: Job, clock: Clock) -> Outcome:
    outcome = Outcome(clock.setting)
    try:
        clock.turn(outcome)
        if job.scout:  # only now: what a step leaves behind would be missing in the peak
            _check(job, clock, outcome)
    except AbsentError as error:
        outcome.status, outcome.reason = job_module.ABSENT, str(error)
    except (UnsupportedError, NotImplementedError) as error:
        outcome.status, outcome.reason = job_module.UNSUPPORTED, _first_line(error)
    except TooSlowError as error:
        outcome.status, outcome.reason = job_module.TOO_SLOW, str(error)
    except Exception as error:  # a peer may fail in any way
        outcome.status, outcome.reason = job_module.FAILED, _first_line(error)
    return outcome


def _check(job: Job, clock: Clock, outcome: Outcome) -> None:
    """Compare what one step without noise adds to the weights with what ours adds; where that is
    something else, the time it took counts for nothing."""
    outcome.deviation = deviation(
        clipped_sum(clock.builder, clock.problem, outcome.setting),
        expected_sums(Path(job.expected), CONTESTANTS[job.contestant].clips),
    )
    if not outcome.deviation <= job.tolerance:
        outcome.status = job_module.DISAGREES
        outcome.reason = f"its clipped sum is off by {outcome.deviation:.1e} of the largest entry"
        outcome.times.clear()


def clipped_sum(
    builder: Builder, problem: Problem, setting: Setting, clip: float | None = None
) -> Weights:
    """The sum of clipped gradients, read off the weights after one step without noise."""
    step = Step(clip=clip or problem.workload.clip, noise=0.0, learning_rate=float(len(problem.y)))
    contestant = builder(problem, setting, step)
    contestant.step()
    after = contestant.weights()
    return {name: before - after[name] for name, before in problem.weights.items()}


def expected_sums(path: Path, clipped: bool) -> Weights:
    """Our clipped sum, or our sum of gradients as they are."""
    prefix = "clipped/" if clipped else "raw/"
    with np.load(path) as stored:
        return {k[len(prefix) :]: stored[k] for k in stored.files if k.startswith(prefix)}


def deviation(found: Weights, expected: Weights) -> float:
    """The largest difference, relative to the largest entry that is expected."""
    largest = max(float(np.abs(value).max()) for value in expected.values())
    return max(float(np.abs(found[k] - v).max()) for k, v in expected.items()) / largest


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160] if lines else ''}"


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    """A turn for every line that comes in; a byte goes out when it is over, and nothing else."""
    said = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    job, path = Job.read(Path(sys.argv[1])), Path(sys.argv[2])
    for _ in zip(sys.stdin, turns(job, path), strict=False):
        os.write(said, b"\n")


if __name__ == "__main__":
    main()
