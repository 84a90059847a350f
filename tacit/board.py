"""What a person sees while several models train: each of them, and how long all will take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn

from tacit.progress import LiveBar, Moment, NothingToClose, facts_of, left


class Board(AbstractContextManager["Board"], Protocol):
    """Follows several trainings, each by its name."""

    def expect(self, kinds: Mapping[str, str], finished: int, jobs: int) -> None:
        """These will be trained, each with the recipe it comes from; so many are there already."""
        ...

    def started(self, name: str) -> None: ...

    def show(self, name: str, moment: Moment) -> None: ...

    def ended(self, name: str, failure: str = "") -> None: ...


class SilentBoard(NothingToClose):
    """Shows nothing."""

    def expect(self, kinds: Mapping[str, str], finished: int, jobs: int) -> None:
        return None

    def started(self, name: str) -> None:
        return None

    def show(self, name: str, moment: Moment) -> None:
        return None

    def ended(self, name: str, failure: str = "") -> None:
        return None


@dataclass
class Clock:
    """Time left for trainings of several kinds: one that waits takes as long as its kind did."""

    kinds: Mapping[str, str]
    jobs: int
    now: Callable[[], float] = time.monotonic
    _begun: dict[str, float] = field(default_factory=dict)
    _left: dict[str, float] = field(default_factory=dict)
    _taken: dict[str, float] = field(default_factory=dict)

    def started(self, name: str) -> None:
        self._begun[name] = self.now()

    def show(self, name: str, seconds_left: float) -> None:
        self._left[name] = seconds_left

    def ended(self, name: str) -> None:
        self._taken[name] = self.now() - self._begun[name]
        self._left.pop(name, None)

    def seconds_left(self) -> float | None:
        """None as long as nothing is known."""
        known = dict(self._taken)
        known |= {n: self.now() - self._begun[n] + rest for n, rest in self._left.items()}
        if not known:
            return None
        waiting = [name for name in self.kinds if name not in known]
        total = sum(self._left.values()) + sum(self._guess(name, known) for name in waiting)
        workers = max(1, min(self.jobs, len(self._left) + len(waiting)))
        return max(total / workers, *self._left.values(), 0.0)

    def _guess(self, name: str, known: Mapping[str, float]) -> float:
        alike = [s for other, s in known.items() if self.kinds[other] == self.kinds[name]]
        return statistics.mean(alike or known.values())


class ProgressBoard(LiveBar):
    """A bar for all trainings with the time left, and one for each that is under way.

    Where there is no terminal it prints a line each time a training begins or ends.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console, TextColumn("[bold]{task.description}"), BarColumn(bar_width=24))
        self._lines: dict[str, TaskID] = {}
        self._shares: dict[str, float] = {}
        self._clock = Clock({}, 1)
        self._done = self._total = 0
        self._all: TaskID | None = None

    def expect(self, kinds: Mapping[str, str], finished: int, jobs: int) -> None:
        self._clock = Clock(kinds, jobs)
        self._done, self._total = finished, finished + len(kinds)
        self._all = self._bar.add_task("", total=self._total)
        self._refresh()
        if finished and kinds:
            self._console.print(f"{finished} of {self._total} runs are finished already")

    def started(self, name: str) -> None:
        self._clock.started(name)
        self._lines[name] = self._bar.add_task(name, total=1)
        if not self._live:
            self._console.print(f"training {name}", markup=False)

    def show(self, name: str, moment: Moment) -> None:
        self._clock.show(name, moment.seconds_left)
        self._shares[name] = moment.step / moment.steps
        facts: dict[str, Any] = facts_of(moment)
        line = self._lines[name]
        self._bar.update(line, total=moment.steps, completed=moment.step, **facts)
        self._refresh()

    def ended(self, name: str, failure: str = "") -> None:
        self._clock.ended(name)
        self._bar.remove_task(self._lines.pop(name))
        self._shares.pop(name, None)
        self._done += 1
        self._refresh()
        if failure:
            self._console.print(f"{name} failed: {failure}", style="red", markup=False)
        elif not self._live:
            self._console.print(f"{self._summary()}  {name}", markup=False)

    def _refresh(self) -> None:
        if self._all is not None:
            done = self._done + sum(self._shares.values())
            self._bar.update(
                self._all, description=self._summary(), completed=done, left=self._left()
            )

    def _summary(self) -> str:
        return f"{self._done} of {self._total} runs"

    def _left(self) -> str:
        seconds = self._clock.seconds_left()
        return "" if seconds is None else left(seconds)
