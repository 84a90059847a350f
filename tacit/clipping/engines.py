"""Which clipping engine computes a run's clipped sums; methods never know."""

from __future__ import annotations

from typing import Literal

from torch import nn

from tacit.clipping.contract import ClippingEngine, ClippingRule
from tacit.clipping.reference import ReferenceEngine

EngineName = Literal["auto", "reference", "loop"]


def engine_for(model: nn.Module, rule: ClippingRule, name: EngineName) -> ClippingEngine:
    """`reference` vectorises over records, `loop` takes them one by one (any module survives
    that); `auto` is the fastest one here."""
    return ReferenceEngine(model, rule, vectorised=name != "loop")
