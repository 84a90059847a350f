"""Noise, accounting and very large batches: measured beside the clipping workloads."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import dp_accounting as dpa
import numpy as np
from dp_accounting.pld import PLDAccountant

from clipping_suite import job as job_module
from clipping_suite.contestants import CONTESTANTS
from clipping_suite.contestants.base import Setting
from clipping_suite.job import Job
from clipping_suite.processes import Environment, variables
from clipping_suite.runner import prepare
from clipping_suite.workloads import large_batch, named
from tacit.privacy import accountants, events
from tacit.privacy.plan import Question, solve
from tacit.privacy.relations import Relation

Json = dict[str, Any]
RATE, DELTA = 0.01, 1e-5
EQUAL_STEPS, NOISE_LEVELS = 10_000, 2_000
PARAMETERS = 10_000_000
_SMALL_STEPS = 24


def noise(threads: int) -> list[Json]:
    """Noise for 10 million parameters in pure torch and native, each in a process of its own."""
    found = []
    for name in ("ours-torch", "ours-native"):
        entry = CONTESTANTS[name]
        own = subprocess.run(
            [sys.executable, "-m", "clipping_suite.noise_speed", str(PARAMETERS), str(threads)],
            env=variables(entry, threads, tuned=True),
            stdout=subprocess.PIPE,
            check=True,
        )
        figures: Json = json.loads(own.stdout)
        status = job_module.OK if figures["native"] == entry.native else job_module.ABSENT
        found.append({"name": name, "title": entry.title, "status": status, **figures})
    return found


def accounting(fine: bool) -> Json:
    """Time and tightness of our accountant; `fine` also takes the slow reference values."""
    equal = [(1.0, EQUAL_STEPS)]
    levels = [(float(sigma), 1) for sigma in np.linspace(2.0, 0.8, NOISE_LEVELS)]
    return {
        "equal_steps": _accounted(equal, 1e-5 if fine else 1e-4, 1.0),
        "noise_levels": _accounted(levels, 1e-4 if fine else None, 10.0),
        "solving": _solving(),
    }


def _accounted(schedule: list[tuple[float, int]], interval: float | None, allowed: float) -> Json:
    event = events.composed(
        [events.repeated(events.poisson(RATE, events.gaussian(s)), n) for s, n in schedule]
    )
    start = time.perf_counter()
    epsilon = accountants.epsilon(event, DELTA)
    found: Json = {
        "epsilon": epsilon,
        "seconds": time.perf_counter() - start,
        "allowed_seconds": allowed,
        "reference": None,
        "relative_distance": None,
    }
    if interval is not None:
        start = time.perf_counter()
        reference = fine_pld(schedule, interval)
        found |= {
            "reference": reference,
            "reference_interval": interval,
            "reference_seconds": time.perf_counter() - start,
            "relative_distance": epsilon / reference - 1,
        }
    return found


def fine_pld(schedule: list[tuple[float, int]], interval: float) -> float:
    """ε by dp-accounting's PLD on a grid of this width, itself never below the true one."""
    accountant = PLDAccountant(
        neighboring_relation=dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval=interval,
    )
    for sigma, count in schedule:
        step = dpa.PoissonSampledDpEvent(RATE, dpa.GaussianDpEvent(sigma))
        accountant.compose(step, count)
    return float(accountant.get_epsilon(DELTA))


def _solving() -> Json:
    question = Question(delta=DELTA, epsilon=3, epochs=20, batch_size=256, records=60_000)
    start = time.perf_counter()
    schedule = solve(question)
    elapsed = time.perf_counter() - start
    return {
        "seconds": elapsed,
        "allowed_seconds": 3.0,
        "noise": schedule.noise,
        "epsilon": schedule.proven(DELTA, Relation.ADD_OR_REMOVE_ONE),
    }


def large_batches(environment: Environment, threads: int) -> list[Json]:
    """Peak memory of one step on 16,384 records in pieces of 64, beside steps on 64 records.

    Those are several, because the C library's holes between buffers grow over the first steps of
    any training; a step on 16,384 records comes after 255 smaller ones of its own.
    """
    large, piece = large_batch()
    small = named("resnet18-gn", piece)
    path = environment.folder / "large.npz"
    found = []
    for workload in (small, large):
        prepare(workload, path)
        for name in ("ours-torch", "ours-native"):
            job = Job(
                contestant=name,
                workload=workload.name,
                problem=str(path),
                expected="",
                settings=(Setting(piece=piece),),
                scout=False,
                tuned=True,
                threads=threads,
                steps=_SMALL_STEPS if workload is small else 1,
                warmup=1 if workload is small else 0,
                seconds=0.0,
                longest_step=3600.0,
                tolerance=0.0,
                batch=workload.batch,
            )
            patient = replace(environment, time_limit=3600.0)
            outcome = patient.ask(job).outcomes[0]
            found.append(
                {
                    "name": name,
                    "title": CONTESTANTS[name].title,
                    "batch": workload.batch,
                    "piece": piece,
                    "steps": job.warmup + job.steps,
                    "status": outcome.status,
                    "reason": outcome.reason,
                    "memory": outcome.memory_with_warmup,
                    "seconds": outcome.times[0] if outcome.status == job_module.OK else None,
                }
            )
    path.unlink()
    return found
