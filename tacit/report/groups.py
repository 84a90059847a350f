"""Runs that differ only in their seed form a group; groups that differ only in budget, a series.

Proven and claimed ε of a group are the largest of its runs, so no run promises more than shown.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tacit.report import values
from tacit.report.load import Confusion, Run

NAMES = frozenset({"title", "run.seed"})
BUDGET = frozenset({"privacy.epsilon", "privacy.noise"})

Settings = Mapping[str, Any]
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Promise:
    """What an ε refers to; two of them can be compared only where all of this is the same."""

    delta: float | None
    relation: str | None
    unit: str

    def __str__(self) -> str:
        relation = f", {self.relation}" if self.relation else ""
        unit = "" if self.unit == "one training record" else f", {self.unit}"
        return f"δ = {values.delta(self.delta)}{relation}{unit}"


@dataclass(frozen=True)
class Member:
    """One run with where it lies and its settings by dotted name."""

    path: Path
    run: Run
    settings: Settings

    @property
    def seed(self) -> int | None:
        found = self.settings.get("run.seed")
        return found if isinstance(found, int) else None

    @property
    def accuracy(self) -> float | None:
        return values.finite((self.run.metrics.get("final") or {}).get("accuracy"))

    @property
    def promise(self) -> Promise | None:
        given = self.run.guarantee
        return Promise(given.delta, given.relation, given.unit) if given else None

    @property
    def identity(self) -> str:
        """The same for copies of one run."""
        return str(self.run.certificate.get("ledger_head") or self.path.resolve())

    def facts(self) -> dict[str, Any]:
        """What decides a run beside its settings, as far as its files say."""
        certificate, metrics = self.run.certificate, self.run.metrics
        found = {key: certificate.get(key) for key in ("method", "sampling", "clipping", "records")}
        return found | {key: metrics.get(key) for key in ("parameters", "evaluated_on")}


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed, with what they have in common."""

    label: str
    series_label: str
    series: int
    rank: int
    members: tuple[Member, ...]

    @property
    def first(self) -> Member:
        return self.members[0]

    @property
    def method(self) -> str:
        return values.method(self.first.run.certificate.get("method"))

    @property
    def model(self) -> str:
        return values.plain(self.first.run.metrics.get("model"))

    @property
    def data(self) -> str:
        return values.plain(self.first.run.metrics.get("data"))

    @property
    def evaluated_on(self) -> str:
        return values.plain(self.first.run.metrics.get("evaluated_on"))

    @property
    def promise(self) -> Promise | None:
        return self.first.promise

    @property
    def proven(self) -> float | None:
        return _largest(m.run.guarantee.epsilon for m in self.members if m.run.guarantee)

    @property
    def claimed(self) -> float | None:
        return _largest(_epsilon(m.run.certificate.get("claimed")) for m in self.members)

    @property
    def audited(self) -> float | None:
        return _largest(_epsilon(m.run.certificate.get("audited")) for m in self.members)

    @property
    def accuracies(self) -> list[float]:
        return [m.accuracy for m in self.members if m.accuracy is not None]

    @property
    def accuracy(self) -> float | None:
        return mean(self.accuracies)

    @property
    def spread(self) -> float | None:
        return spread(self.accuracies)

    @property
    def steps(self) -> float | None:
        """Steps that were charged; the planned ones where an old certificate does not count."""
        counted = (
            m.run.certificate.get("charges", m.run.certificate.get("steps")) for m in self.members
        )
        return _largest(map(values.finite, counted))

    @property
    def noise(self) -> float | None:
        return values.finite(self.first.run.certificate.get("noise_multiplier"))

    @property
    def seeds(self) -> list[int]:
        """The seeds that are known; a run without one drew from the operating system."""
        return [m.seed for m in self.members if m.seed is not None]

    def metric(self, name: str) -> float | None:
        """The mean of a number in metrics.json over the runs that have it."""
        found = (values.finite(m.run.metrics.get(name)) for m in self.members)
        return mean([number for number in found if number is not None])

    def confusion(self) -> Confusion | None:
        """Counts added up over the runs; None where one has none or their classes differ."""
        tables = [m.run.confusion for m in self.members]
        first = tables[0]
        if first is None or any(t is None or t.names != first.names for t in tables):
            return None
        rows = zip(*(t.counts for t in tables if t is not None), strict=True)
        counts = [[sum(cells) for cells in zip(*row, strict=True)] for row in rows]
        return Confusion(counts=counts, names=first.names)


def gather(members: Sequence[Member]) -> list[list[list[Member]]]:
    """Series of groups of runs, in the order of their first run, budgets rising within a series."""
    groups = [found for _, found in apart(members, _group_key)]
    series = [found for _, found in apart(groups, lambda group: _series_key(group[0]))]
    return [sorted(found, key=_by_budget) for found in series]


def apart(items: Iterable[Item], key: Callable[[Item], Key]) -> list[tuple[Key, list[Item]]]:
    """The items by key, in the order in which the keys first appear."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.items())


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name.

    >>> flat({"run": {"seed": 1}, "title": "A"})
    {'run.seed': 1, 'title': 'A'}
    """
    found: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def differing(members: Sequence[Member], beside: frozenset[str] = NAMES) -> list[str]:
    """The settings, by dotted name, that are not the same in all of these runs."""
    keys = dict.fromkeys(key for member in members for key in member.settings)
    return [
        key
        for key in keys
        if key not in beside and len({_text(member.settings.get(key)) for member in members}) > 1
    ]


def mean(numbers: Sequence[float]) -> float | None:
    """The mean without an error of rounding on the way."""
    return statistics.mean(numbers) if numbers else None


def spread(numbers: Sequence[float]) -> float | None:
    """The standard deviation of the runs around their mean; one run has none."""
    return statistics.stdev(numbers) if len(numbers) > 1 else None


def _group_key(member: Member) -> str:
    settings = {key: v for key, v in member.settings.items() if key not in NAMES}
    noise = member.run.certificate.get("noise_multiplier")
    return _text([settings, member.facts(), noise, str(member.promise)])


def _series_key(member: Member) -> str:
    left_out = NAMES | BUDGET
    settings = {key: v for key, v in member.settings.items() if key not in left_out}
    return _text([settings, member.facts(), str(member.promise)])


def _by_budget(group: list[Member]) -> float:
    found = _largest(m.run.guarantee.epsilon for m in group if m.run.guarantee)
    return float("inf") if found is None else found


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _epsilon(entry: object) -> float | None:
    return values.finite(entry.get("epsilon")) if isinstance(entry, dict) else None


def _largest(numbers: Iterable[float | None]) -> float | None:
    return max((number for number in numbers if number is not None), default=None)
