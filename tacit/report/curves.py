"""How a group got where it is: accuracy and ε over training, and what a given accuracy took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tacit.report import values
from tacit.report.groups import Group, Member, mean, spread
from tacit.report.load import Evaluation

_LEVELS = (
    *(0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.88, 0.9, 0.92, 0.94, 0.95),
    *(0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 0.998),
)
_SHOWN_LEVELS = 4


@dataclass(frozen=True)
class Moment:
    """A group after so many steps: means over the runs that were evaluated there."""

    step: float
    epoch: float | None
    seconds: float | None
    runs: int
    accuracy: float
    spread: float | None


@dataclass(frozen=True)
class Reached:
    """What the runs of a group took to an accuracy; means over those that reached it."""

    runs: int
    of: int
    step: float | None = None
    epoch: float | None = None
    seconds: float | None = None


def accuracy_curve(group: Group) -> list[Moment]:
    """Mean accuracy and spread at every step at which a run of the group was evaluated."""
    rows: dict[float, list[Evaluation]] = {}
    for member in group.members:
        for row in member.run.evaluations:
            if values.finite(row.step) is not None and values.finite(row.accuracy) is not None:
                rows.setdefault(row.step or 0.0, []).append(row)
    found = []
    for step, at in sorted(rows.items()):
        heights = [row.accuracy for row in at if row.accuracy is not None]
        found.append(
            Moment(
                step=step,
                epoch=_mean(row.epoch for row in at),
                seconds=_mean(row.seconds for row in at),
                runs=len(heights),
                accuracy=mean(heights) or 0.0,
                spread=spread(heights),
            )
        )
    return found


def epsilon_curve(group: Group) -> list[tuple[float, float]]:
    """(epoch, proven ε), the largest of the runs; only from runs whose curve is at their own δ."""
    largest: dict[float, float] = {}
    for member in group.members:
        rate = _epochs_per_step(member)
        if rate is None or not member.run.same_delta:
            continue
        for step, epsilon in member.run.epsilon_curve:
            if values.finite(epsilon) is not None:
                largest[step * rate] = max(epsilon, largest.get(step * rate, 0.0))
    return [(0.0, 0.0), *sorted(largest.items())] if largest else []


def levels(groups: Sequence[Group]) -> list[float]:
    """Round accuracies worth asking for: the best that all reach, up to the best that any does."""
    best = [max((m.accuracy for m in accuracy_curve(group)), default=0.0) for group in groups]
    reached = [level for level in _LEVELS if best and level <= max(best)]
    common = [level for level in reached if level <= min(best)]
    wanted = common[-1:] + reached[len(common) :]
    if len(wanted) > _SHOWN_LEVELS:
        last = len(wanted) - 1
        wanted = [wanted[round(i * last / (_SHOWN_LEVELS - 1))] for i in range(_SHOWN_LEVELS)]
    return wanted


def reached(group: Group, level: float) -> Reached:
    """The first evaluation of each run at or above the level."""
    first = [
        next((row for row in member.run.evaluations if (row.accuracy or 0.0) >= level), None)
        for member in group.members
    ]
    rows = [row for row in first if row is not None]
    if not rows:
        return Reached(0, len(group.members))
    return Reached(
        runs=len(rows),
        of=len(group.members),
        step=_mean(row.step for row in rows),
        epoch=_mean(row.epoch for row in rows),
        seconds=_mean(row.seconds for row in rows),
    )


def _epochs_per_step(member: Member) -> float | None:
    certificate = member.run.certificate
    size = values.finite(certificate.get("expected_batch_size"))
    records = values.finite(certificate.get("records"))
    if size and records:
        return size / records
    for row in reversed(member.run.evaluations):
        if values.finite(row.epoch) and values.finite(row.step):
            return (row.epoch or 0.0) / (row.step or 1.0)
    return None


def _mean(numbers: Iterable[float | None]) -> float | None:
    found = [values.finite(number) for number in numbers]
    return mean([number for number in found if number is not None])
