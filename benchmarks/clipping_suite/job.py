"""What the runner asks of a contestant's process, and what it gets back, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clipping_suite.contestants.base import Setting

OK = "ok"
ABSENT = "absent"
UNSUPPORTED = "unsupported"
TOO_SLOW = "too slow"
NO_ANSWER = "no answer"
DISAGREES = "disagrees"
FAILED = "failed"


@dataclass(frozen=True)
class Job:
    """One process' work: try settings and check them (`scout`), or time one of them.

    `seconds` and `steps` bound the timed part: at least `steps`, more while time is left.
    `longest_step` is the cap beyond which a contestant is given up.
    """

    contestant: str
    workload: str
    problem: str
    expected: str
    settings: tuple[Setting, ...]
    scout: bool
    tuned: bool
    threads: int
    steps: int
    warmup: int
    seconds: float
    longest_step: float
    tolerance: float
    batch: int | None = None

    def write(self, path: Path) -> None:
        """Store the job for another process."""
        path.write_text(json.dumps(asdict(self)), "utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        """The job that `write` stored."""
        values: dict[str, Any] = json.loads(path.read_text("utf-8"))
        settings = tuple(Setting(**setting) for setting in values.pop("settings"))
        return cls(**values, settings=settings)


@dataclass
class Outcome:
    """What became of one setting; times in seconds, memory in megabytes above the start.

    `memory` is the peak during timed steps, `memory_with_warmup` that of the whole process.
    `deviation` is the largest difference to our clipped sum, relative to its largest entry.
    """

    setting: Setting
    status: str = OK
    reason: str = ""
    times: list[float] = field(default_factory=list)
    deviation: float | None = None
    memory: float | None = None
    memory_with_warmup: float | None = None
    tuned: bool = False


@dataclass
class Answer:
    """All that one process found out."""

    outcomes: list[Outcome]
    versions: dict[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Store the answer for the runner."""
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(asdict(self)), "utf-8")
        unfinished.replace(path)

    @classmethod
    def read(cls, path: Path) -> Answer:
        """The answer that `write` stored."""
        values: dict[str, Any] = json.loads(path.read_text("utf-8"))
        outcomes = [
            Outcome(setting=Setting(**outcome.pop("setting")), **outcome)
            for outcome in values["outcomes"]
        ]
        return cls(outcomes, values["versions"])
