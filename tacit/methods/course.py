"""What a selective run remembers of its course, in the memory that is saved with a checkpoint."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tacit.methods.phases import Dials
from tacit.privacy import claims
from tacit.privacy.rdp import Array

_COUNTS = ("trials", "accepted", "applied", "asked", "rejected_in_a_row")


class Course:
    """Counts, settings, the last accuracy, and what a paper would have charged.

    All of it follows from what was released, so it may decide about what comes next.
    """

    def __init__(self, memory: dict[str, Tensor], start: Dials) -> None:
        self._memory = memory
        self._start = start

    @property
    def dials(self) -> Dials:
        """The settings now."""
        found = self._memory.get("dials")
        return self._start if found is None else Dials(*(float(value) for value in found))

    @dials.setter
    def dials(self, now: Dials) -> None:
        values = (now.noise, now.test_noise, now.beta, now.rate)
        self._memory["dials"] = torch.tensor(values, dtype=torch.float64)

    @property
    def accuracy(self) -> float | None:
        """The last one that was measured."""
        found = self._memory.get("accuracy")
        return None if found is None else float(found)

    @accuracy.setter
    def accuracy(self, now: float) -> None:
        self._memory["accuracy"] = torch.tensor(now, dtype=torch.float64)

    @property
    def claimed(self) -> Array:
        """Rényi divergences of the applied updates, as paper 001 adds them up."""
        found = self._memory.get("claimed")
        return np.zeros(len(claims.SELECTIVE_ORDERS)) if found is None else found.numpy()

    @claimed.setter
    def claimed(self, now: Array) -> None:
        self._memory["claimed"] = torch.from_numpy(now.copy())

    @property
    def counts(self) -> dict[str, int]:
        """How often what happened."""
        found = self._memory.get("counts")
        values = [0] * len(_COUNTS) if found is None else found.tolist()
        return dict(zip(_COUNTS, values, strict=True))

    def count(self, **more: int | None) -> None:
        """Add to the counts; None starts one again."""
        now = self.counts
        for name, value in more.items():
            now[name] = 0 if value is None else now[name] + value
        self._memory["counts"] = torch.tensor(list(now.values()), dtype=torch.int64)
