"""Thresholds over a run: given, decaying, or estimated again and again on public records.

Guarantee: the rule of a step is a function of the recipe, the step's number, public records and
weights that earlier steps released. It costs nothing, and every proof for a rule that is fixed
before training holds step by step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from tacit.clipping.contract import Batch, ClippingEngine, ClippingRule, LossFunction
from tacit.clipping.groups import Groups
from tacit.clipping.rules import Automatic, Flat, Layerwise, Multiplied
from tacit.errors import ArgumentError

Clipping = Literal[
    "flat", "automatic", "layerwise", "adaptive-layerwise", "adaptive-norms", "multiplied"
]
_SMALLEST_PART = 1e-6


class Public(Protocol):
    """Records by index that are treated as public."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> Batch: ...


@dataclass(frozen=True)
class Thresholds:
    """The clipping rule at every step.

    With e_h the norms of the groups and M the largest of them:

    - flat, automatic: the whole gradient, to `clip`;
    - layerwise: group h to its threshold in `given`, or to `clip`;
    - adaptive-layerwise: group h to clip·e_h/M (paper 003);
    - adaptive-norms: group h to e_h (Zhang et al., as paper 003 describes them);
    - multiplied: group h is multiplied by M/e_h, then the whole clipped to `clip` (003, B.2).

    `clip` falls by the factor `decay` every `epoch` steps. `weights` are the p_h of the paper:
    noise on group h is that of multiplier σ/p_h.
    """

    clipping: Clipping
    groups: Groups
    clip: float
    decay: float = 1.0
    epoch: int = 1
    given: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    estimate: NormEstimate | None = None

    def __post_init__(self) -> None:
        for name, values, rules in (
            ("thresholds", self.given, ("layerwise", "multiplied")),
            ("noise_weights", self.weights, ("layerwise", "adaptive-layerwise", "adaptive-norms")),
        ):
            if values and self.clipping not in rules:
                raise ArgumentError(
                    f"{name} is given, but clipping is {self.clipping!r}, which does not use it:"
                    f" leave it out, or set clipping to {' or '.join(map(repr, rules))}"
                )
            if values and len(values) != len(self.groups):
                raise ArgumentError(
                    f"{name} has {len(values)} values for {len(self.groups)} groups of layers;"
                    " give one for each"
                )
        if self.clipping.startswith("adaptive") and self.estimate is None:
            raise ArgumentError(
                f"clipping is {self.clipping!r}, which estimates norms on public records, but there"
                " are none: set data.public, or give thresholds with clipping 'layerwise'"
            )
        if self.clipping == "multiplied" and self.estimate is None and not self.given:
            raise ArgumentError(
                "clipping is 'multiplied' without norms to multiply by: give thresholds, or public"
                " records to estimate them on"
            )

    @property
    def apart(self) -> bool:
        """Whether groups of layers have norms of their own."""
        return self.clipping not in ("flat", "automatic")

    @property
    def constant(self) -> bool:
        """Whether every step has the same rule."""
        return self.estimate is None and self.decay == 1.0

    def at(self, step: int, engine: ClippingEngine, loss: LossFunction) -> ClippingRule:
        """The rule of a step, norms estimated first where it is time."""
        norms = self.estimate.at(step, engine, loss) if self.estimate else self.given
        return self.rule(step, norms)

    def rule(self, step: int, norms: tuple[float, ...] = ()) -> ClippingRule:
        """The rule of a step at which the groups have these norms; equal ones where none given."""
        clip = self.clip * self.decay ** (step // self.epoch)
        if self.clipping == "flat":
            return Flat(clip)
        if self.clipping == "automatic":
            return Automatic(clip)
        norms = _positive(norms or (1.0,) * len(self.groups))
        largest = max(norms)
        if self.clipping == "multiplied":
            return Multiplied(self.groups, clip, tuple(largest / norm for norm in norms))
        if self.clipping == "adaptive-layerwise":
            bounds = tuple(clip * norm / largest for norm in norms)
        elif self.clipping == "adaptive-norms" or self.given:
            bounds = tuple(norm * clip / self.clip for norm in norms)
        else:
            bounds = (clip,) * len(self.groups)
        return Layerwise(self.groups, bounds, self._shares())

    def _shares(self) -> tuple[float, ...]:
        total = sum(weight**2 for weight in self.weights)
        return tuple(weight**2 / total for weight in self.weights)


def _positive(norms: tuple[float, ...]) -> tuple[float, ...]:
    """A layer without gradient keeps a small threshold, or it could never move again."""
    largest = max(norms)
    if not (0 < largest < float("inf")):
        return (1.0,) * len(norms)
    return tuple(max(norm, largest * _SMALLEST_PART) for norm in norms)


@dataclass(frozen=True)
class NormEstimate:
    """Mean gradient norms of the groups over public records, taken anew every `every` steps.

    The norms are those of what is clipped: of single records, or of mini-sets of `size` records.
    `memory` keeps the last estimate, so that a resumed run goes on with it.
    """

    public: Public
    groups: Groups
    every: int
    size: int = 1
    most: int = 512
    memory: dict[str, Tensor] = field(default_factory=dict)

    def at(self, step: int, engine: ClippingEngine, loss: LossFunction) -> tuple[float, ...]:
        """The norms in force at a step."""
        turn = step // self.every
        if "clipping.turn" not in self.memory or int(self.memory["clipping.turn"]) != turn:
            self.memory["clipping.norms"] = mean_norms(
                engine, self.groups, loss, self.batches(turn)
            )
            self.memory["clipping.turn"] = torch.tensor(turn)
        return tuple(self.memory["clipping.norms"].tolist())

    def batches(self, turn: int) -> Iterable[Batch]:
        """The public records of a turn, at most `most` or one mini-set, each turn the next ones."""
        count = min(len(self.public), max(self.most, self.size))
        start = turn * count % len(self.public)
        indices = torch.arange(start, start + count) % len(self.public)
        size = self.size if self.size > 1 else min(count, 256)
        return [self.public.batch(part) for part in indices.split(size)]


def mean_norms(
    engine: ClippingEngine, groups: Groups, loss: LossFunction, batches: Iterable[Batch]
) -> Tensor:
    """Mean norm of each group over what the engine clips; the engine keeps its own rule."""
    kept, probe = engine.rule, _Probe(groups)
    engine.rule = probe
    try:
        engine.clipped_sum(loss, batches, 1)
    finally:
        engine.rule = kept
    return probe.sums / max(probe.count, 1)


class _Probe:
    """A rule that clips everything to zero and remembers the norms it saw."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self.bounds = self.shares = (1.0,) * len(groups)
        self.sums = torch.zeros(len(groups), dtype=torch.float64)
        self.count = 0

    def grouping(self, names: Sequence[str]) -> Sequence[int]:
        return self._groups.numbers(names)

    def factors(self, norms: Tensor) -> Tensor:
        self.sums += norms.double().sum(0).cpu()
        self.count += len(norms)
        return torch.zeros_like(norms)
