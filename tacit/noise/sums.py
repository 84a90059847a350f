"""Which sum each step's noise was meant for: so that shared noise is never given to another."""

from __future__ import annotations

import os
from pathlib import Path

from tacit.errors import RunError


class SumLog:
    """Names of the sums that were noised, step by step, on disk before the noise is added.

    Guarantee: where noise is addressed by the step alone, as correlated noise must be, no step's
    noise is ever added to two different sums, whatever changed between a crash and the resumption.
    Names are secret (they lie in the run's private part) and tell nothing without the key. A line
    that a crash cut short was written for noise that was not used, and is dropped.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._names: dict[int, str] = {}
        if path is not None and path.exists():
            *whole, rest = path.read_bytes().split(b"\n")
            if rest:
                with open(path, "r+b") as file:
                    file.truncate(path.stat().st_size - len(rest))
            for line in whole:
                step, name = line.decode("ascii").split(" ")
                self._names[int(step)] = name

    def enter(self, step: int, name: str) -> None:
        """Note the sum of a step; refuse another one for a step that was noised before."""
        known = self._names.get(step)
        if known == name:
            return
        if known is not None:
            raise RunError(
                f"step {step} was noised before, for another sum: something outside the recipe has"
                " changed since (the model's code, a library, the processor), and the same noise"
                " must not cover two sums. The run cannot go on; what it spent stays in its ledger"
            )
        self._names[step] = name
        if self._path is not None:
            with open(self._path, "a", encoding="ascii") as file:
                file.write(f"{step} {name}\n")
                file.flush()
                os.fsync(file.fileno())
