"""What a run with noised activations sees of itself, epoch by epoch, and what follows from it.

Everything here is a function of released activations and of weights. Where both are private it
costs nothing; under the paper's algorithm neither is, and nothing is promised.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from tacit.errors import ModelError
from tacit.methods.stopping import StoppingRule
from tacit.models.sanitization import Split

StopMode = Literal["never", "flag", "stop"]


class Watch:
    """Keeps spread, threshold and flags of every epoch; moves C = t·‖W‖ (000, Algorithm 3).

    `memory` travels with checkpoints, so that a resumed run goes on with the same values.
    """

    def __init__(
        self,
        split: Split,
        follow: float,
        mode: StopMode,
        rule: StoppingRule,
        steps_per_epoch: float,
        memory: dict[str, Tensor],
    ) -> None:
        self._split, self._follow, self._mode, self._rule = split, follow, mode, rule
        self._per_epoch = steps_per_epoch
        self._memory = memory
        if follow and split.weights_below() is None:
            raise ModelError(
                "follow is set, but no linear or convolutional layer lies below the sanitization"
                " layer, so there is no W whose norm the threshold could follow; set follow = 0"
            )
        if follow:
            self._move()

    def after(self, step: int, spread: list[float]) -> None:
        """Take in a step; at the end of an epoch note it, and set the next threshold."""
        running = self._values("running") or [0.0, 0.0]
        if spread:
            running = [running[0] + sum(spread) / len(spread), running[1] + 1]
        done = math.floor((step + 1) / self._per_epoch + 1e-9)
        if done > math.floor(step / self._per_epoch + 1e-9) and running[1]:
            self._append("spread", running[0] / running[1])
            self._append("threshold", float(self._split.layer.threshold))
            self._append("norm", self._norm())
            running = [0.0, 0.0]
            if self._follow:
                self._move()
        self._memory["running"] = torch.tensor(running, dtype=torch.float64)

    @property
    def flags(self) -> list[int]:
        """Epochs at whose end the rule raised a flag."""
        return [] if self._mode == "never" else self._rule.flags(self._values("spread"))

    @property
    def stopped(self) -> bool:
        """Whether a flag has ended the run."""
        return self._mode == "stop" and bool(self.flags)

    def trace(self) -> dict[str, Any]:
        """Spread, threshold and ‖W‖ by epoch, the flags, and the lines that they follow from.

        Also the flags of rules around the chosen one: what else it might have said.
        """
        asked, spread = self._mode != "never", self._values("spread")
        lines = self._rule.lines(spread) if asked else []
        around = self._rule.around() if asked else {}
        return {
            "sanitization": {
                **{key: self._values(key) for key in ("spread", "threshold", "norm")},
                "flags": self.flags,
                "flag_mode": self._mode,
                "slopes": [list(line) for line in lines],
                "flags_around": {name: rule.flags(spread) for name, rule in around.items()},
            }
        }

    def _norm(self) -> float:
        weights = self._split.weights_below()
        return 0.0 if weights is None else float(weights.detach().norm())

    def _move(self) -> None:
        self._split.layer.threshold.fill_(self._follow * self._norm())

    def _values(self, key: str) -> list[float]:
        kept = self._memory.get(key)
        return [] if kept is None else [float(value) for value in kept.tolist()]

    def _append(self, key: str, value: float) -> None:
        self._memory[key] = torch.tensor([*self._values(key), value], dtype=torch.float64)
