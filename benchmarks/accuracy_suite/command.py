"""What commands that train many recipes have in common."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def training_parser(description: str | None, runs: str) -> argparse.ArgumentParser:
    """A parser with the options of every such command; `runs` is where run directories lie."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--jobs", type=int, default=1, help="trainings at once; above 1 with a thread each")
    add("--data-dir", type=Path)
    add("--runs", type=Path, default=Path(runs), help="where run directories lie")
    return parser


@contextmanager
def resumable(finish: Callable[[], None]) -> Iterator[None]:
    """Work that goes on where it stopped: children end with it, and `finish` is always done."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # children are stopped too
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command goes on where it stopped") from None
    finally:
        signal.signal(signal.SIGTERM, before)
        finish()
