"""Which clipping engine computes a run's clipped sums; methods never know."""

from __future__ import annotations

from typing import Literal

from torch import nn

from tacit.clipping.contract import ClippingEngine, ClippingRule
from tacit.clipping.fast import DEFAULT_MEMORY_CEILING, FastEngine
from tacit.clipping.reference import ReferenceEngine

EngineName = Literal["fast", "reference", "loop"]


def engine_for(
    model: nn.Module,
    rule: ClippingRule,
    name: EngineName,
    *,
    deterministic: bool = True,
    memory_ceiling: int = DEFAULT_MEMORY_CEILING,
) -> ClippingEngine:
    """`fast` never keeps per-record gradients, `reference` vectorises over records, `loop` takes
    them one by one, which any module survives. All give the same sum up to rounding."""
    if name == "fast":
        return FastEngine(model, rule, deterministic=deterministic, memory_ceiling=memory_ceiling)
    return ReferenceEngine(model, rule, vectorised=name == "reference")
