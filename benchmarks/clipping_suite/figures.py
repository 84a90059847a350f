"""Medians, ratios and geometric means, from a results file alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

Json = dict[str, Any]
OURS = ("ours-native", "ours-torch")


@dataclass(frozen=True)
class Row:
    """One contestant on one workload; figures are None where it has none."""

    workload: str
    contestant: str
    title: str
    family: str
    status: str
    reason: str
    setting: str
    repeats: int
    seconds: float | None
    to_default: float | None
    to_best: float | None
    to_ours: float | None
    memory: float | None
    memory_with_warmup: float | None
    memory_to_plain: float | None
    deviation: float | None
    untuned_seconds: float | None


def seconds_of(contestant: Json) -> float | None:
    """The median step, or None where nothing was timed."""
    good = contestant["status"] == "ok" and contestant["times"]
    return median(contestant["times"]) if good else None


def rows_of(workload: Json) -> list[Row]:
    """Every contestant with its ratios to plain SGD as it comes, to the best plain, and to us."""
    seconds = {c["name"]: seconds_of(c) for c in workload["contestants"]}
    default = seconds.get("plain-default")
    best = least(seconds.get(name) for name in ("plain-default", "plain"))
    ours = next((seconds[name] for name in OURS if seconds.get(name) is not None), None)
    memories = {c["name"]: c["memory"] for c in workload["contestants"]}
    plain_memory = memories.get("plain-default") or memories.get("plain")
    rows = []
    for c in workload["contestants"]:
        own = seconds[c["name"]]
        other = c["default_allocator"]
        rows.append(
            Row(
                workload=workload["name"],
                contestant=c["name"],
                title=c["title"],
                family=c["family"],
                status=c["status"],
                reason=c["reason"],
                setting=c["setting"],
                repeats=len(c["times"]),
                seconds=own,
                to_default=ratio(own, default),
                to_best=ratio(own, best),
                to_ours=ratio(own, ours),
                memory=c["memory"],
                memory_with_warmup=c["memory_with_warmup"],
                memory_to_plain=ratio(c["memory"], plain_memory),
                deviation=c["deviation"],
                untuned_seconds=median(other["times"]) if other and other["times"] else None,
            )
        )
    return rows


def all_rows(results: Json) -> list[Row]:
    """The rows of all workloads."""
    return [row for workload in results["workloads"] for row in rows_of(workload)]


def ratio(top: float | None, bottom: float | None) -> float | None:
    """top/bottom where both are known and positive."""
    return top / bottom if top and bottom else None


def least(values: Iterable[float | None]) -> float | None:
    """The smallest of the known values."""
    return min((value for value in values if value is not None), default=None)


def geometric_mean(values: Sequence[float]) -> float | None:
    """exp of the mean logarithm.

    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


@dataclass(frozen=True)
class Overall:
    """A contestant over all workloads that it finished."""

    contestant: str
    title: str
    workloads: int
    mean: float | None
    worst: float | None
    worst_memory: float | None


def overall(rows: Sequence[Row]) -> list[Overall]:
    """Geometric mean and worst of the ratios to the best plain step."""
    found = []
    for name in dict.fromkeys(row.contestant for row in rows):
        own = [row for row in rows if row.contestant == name]
        ratios = [row.to_best for row in own if row.to_best is not None]
        memories = [row.memory_to_plain for row in own if row.memory_to_plain is not None]
        mean = geometric_mean(ratios)
        worst, worst_memory = max(ratios, default=None), max(memories, default=None)
        found.append(Overall(name, own[0].title, len(ratios), mean, worst, worst_memory))
    return found


def lead(rows: Sequence[Row], ours: str) -> dict[str, float]:
    """For each workload, how many times faster we are than the fastest peer."""
    leads = {}
    for name in dict.fromkeys(row.workload for row in rows):
        here = [row for row in rows if row.workload == name]
        own = least(row.seconds for row in here if row.contestant == ours)
        peer = least(row.seconds for row in here if row.family not in ("plain", "ours"))
        ahead = ratio(peer, own)
        if ahead is not None:
            leads[name] = ahead
    return leads
