"""Accepted candidates that wait for the choice among them; they live in a method's memory."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tacit.noise.source import RandomSource
from tacit.state import Snapshot

_VALUES = "values"


class Candidates:
    """Snapshots with their noisy changes of loss, kept as tensors so that a run can be resumed."""

    def __init__(self, memory: dict[str, Tensor]) -> None:
        self._memory = memory

    def __len__(self) -> int:
        return len(self.changes)

    @property
    def changes(self) -> list[float]:
        """The noisy change of loss of each."""
        found = self._memory.get("changes")
        return [] if found is None else [float(change) for change in found]

    def add(self, snapshot: Snapshot, change: float) -> None:
        """Keep one more."""
        index = len(self)
        for name, tensor in snapshot.tensors.items():
            self._memory[f"candidate.{index}.{name}"] = tensor
        text = json.dumps(snapshot.values).encode()
        self._memory[f"candidate.{index}.{_VALUES}"] = torch.tensor(list(text), dtype=torch.uint8)
        self._memory["changes"] = torch.tensor([*self.changes, change], dtype=torch.float64)

    def clear(self) -> None:
        """Forget all."""
        for name in [n for n in self._memory if n.startswith("candidate.") or n == "changes"]:
            del self._memory[name]

    def at(self, index: int) -> Snapshot:
        """One of them."""
        start = f"candidate.{index}."
        tensors = {k[len(start) :]: v for k, v in self._memory.items() if k.startswith(start)}
        values = json.loads(bytes(tensors.pop(_VALUES).tolist()))
        return Snapshot(tensors, values)

    def average(self) -> Snapshot:
        """The mean of all: weights and what the optimizer remembers."""
        found = [self.at(index) for index in range(len(self))]
        tensors = {
            name: torch.stack([one.tensors[name] for one in found]).mean(0)
            if first.is_floating_point()
            else first
            for name, first in found[0].tensors.items()
        }
        return Snapshot(tensors, found[0].values)


def preferred(
    changes: Sequence[float], within: float, highest: bool, source: RandomSource, step: int
) -> int:
    """The candidate of the lowest noisy change, by lot among those within `within` of it.

    For two this is Eq. 16 of paper 001 with its sign set right; `highest` is the sign as printed.
    """
    signed = -np.array(changes) if highest else np.array(changes)
    close = np.flatnonzero(signed <= signed.min() + within)
    return int(close[int(source.words("choice", step, 1)[0]) % len(close)])
