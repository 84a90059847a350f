"""What a person sees while a model trains; public values only."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from tacit.report import values

FACTS = ("epoch", "epsilon", "accuracy", "speed", "left")
_TIMES = ("speed", "left")


@dataclass(frozen=True)
class Moment:
    """The public state of a run after a step."""

    step: int
    steps: int
    epoch: float
    epochs: float
    epsilon: float | None
    budget: float | None
    accuracy: float | None
    records_per_second: float
    seconds_left: float
    doing: str = "training"

    @classmethod
    def bare(cls, step: int, steps: int, seconds_left: float, doing: str = "training") -> Moment:
        """Of something that is no training of its own: how far it is, and nothing else."""
        return cls(step, steps, 0.0, 0.0, None, None, None, 0.0, seconds_left, doing)


class Watcher(AbstractContextManager["Watcher"], Protocol):
    """Follows a run."""

    def show(self, moment: Moment) -> None:
        """A step was taken."""
        ...


class NothingToClose(AbstractContextManager[Any]):
    """Entered and left without a trace."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


class Silent(NothingToClose):
    """Shows nothing."""

    def show(self, moment: Moment) -> None:
        return None


class Fact(ProgressColumn):
    """A column that shows one field of a task."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def render(self, task: Task) -> Text:
        return Text(str(task.fields.get(self._name, "")))


_Bar = TypeVar("_Bar", bound="LiveBar")


class LiveBar(AbstractContextManager[Any]):
    """Bars with the facts of a moment beside them; nothing is drawn where there is no terminal."""

    def __init__(self, console: Console, *columns: ProgressColumn) -> None:
        self._console = console
        self._live = console.is_terminal
        facts = (Fact(name) for name in FACTS)
        self._bar = Progress(*columns, *facts, console=console, disable=not self._live)

    def __enter__(self: _Bar) -> _Bar:
        self._bar.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.__exit__(kind, error, trace)


class ProgressBar(LiveBar):
    """A live line: epoch, proven ε spent of the budget, public accuracy, records/s, time left.

    Where there is no terminal it prints a line each time a tenth of the run is done, without rate
    and time left: logs are kept, and exact times follow the private sizes of batches.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console, TextColumn("[bold]{task.description}"), BarColumn())
        self._task = self._bar.add_task("training", total=1)
        self._printed = ("", 0)

    def show(self, moment: Moment) -> None:
        facts: dict[str, Any] = facts_of(moment)
        where: dict[str, Any] = {"total": moment.steps, "completed": moment.step}
        self._bar.update(self._task, description=moment.doing, **where, **facts)
        printed = (moment.doing, 10 * moment.step // moment.steps)
        if not self._live and printed[1] > 0 and printed != self._printed:
            self._printed = printed
            kept = (facts[name] for name in FACTS if name not in _TIMES)
            said = "  ".join(fact for fact in kept if fact)
            self._console.print(f"{moment.doing}  {said}", highlight=False)


def facts_of(moment: Moment) -> dict[str, str]:
    """A moment in a few words each."""
    if moment.epochs == 0:
        share = f"{moment.step / moment.steps:.0%}"
        return dict.fromkeys(FACTS, "") | {"epoch": share, "left": left(moment.seconds_left)}
    budget = f" of {moment.budget:g}" if moment.budget else ""
    spent = f"ε ≤ {values.proven(moment.epsilon)}{budget}"
    accuracy = f"accuracy {values.percent(moment.accuracy)}"
    return {
        "epoch": f"epoch {moment.epoch:.1f}/{moment.epochs:g}",
        "epsilon": "not private" if moment.epsilon is None else spent,
        "accuracy": "" if moment.accuracy is None else accuracy,
        "speed": f"{moment.records_per_second:,.0f} records/s",
        "left": left(moment.seconds_left),
    }


def left(seconds: float) -> str:
    """Time that is left, as on a clock."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} left" if hours else f"{minutes}:{rest:02d} left"
