"""What follows from the scores of an attack: the audited ε, and what it says of the promise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import numpy as np

from tacit.audit import bounds
from tacit.audit.bounds import Bound
from tacit.audit.promised import Promised
from tacit.audit.protocol import Played
from tacit.audit.scores import SHOWN_FALSE_POSITIVES, Interval, Scores
from tacit.errors import ArgumentError
from tacit.report import values

CONFIDENCE = 0.95
Json = dict[str, Any]


class Status(str, Enum):
    """How an audit ends, from well to badly."""

    CONSISTENT = "consistent"
    UNSETTLED = "unsettled"
    CLAIM_REFUTED = "claim refuted"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """What one attack showed. `epsilon` is audited: a lower bound, rounded down."""

    attack: str
    relation: str
    delta: float
    confidence: float
    epsilon: float
    proven: float
    claimed: float | None
    coins: int
    bounds: tuple[Bound, ...]
    auc: Interval
    highest_auc: float
    true_positives: dict[str, Interval]
    """By the rate of false positives, where at least one of those who took no part is that many."""
    coins_needed: dict[str, int]
    """How many coins that takes, for each rate."""
    roc: tuple[tuple[float, float, float], ...]
    """False positive rate, true positive rate, and the highest that the promise allows."""

    @property
    def status(self) -> Status:
        """Broken where more leaks than is proven; refuted where more leaks than is claimed.

        Unsettled where no bound on ε shows that, but the whole interval of the AUC lies above what
        the proof allows. It holds for independent scores and many coins, so it decides nothing.
        """
        if self.epsilon > self.proven:
            return Status.BROKEN
        if self.claimed is not None and self.epsilon > self.claimed:
            return Status.CLAIM_REFUTED
        return Status.UNSETTLED if self.auc.low > self.highest_auc else Status.CONSISTENT

    @property
    def verdict(self) -> str:
        """The status in words."""
        found = (
            f"the attack by {self.attack} shows ε ≥ {values.audited(self.epsilon)} at"
            f" {values.short_percent(self.confidence)} confidence"
            f" (δ = {values.delta(self.delta)}, {self.relation})"
        )
        proven = values.proven(self.proven)
        if self.status is Status.BROKEN:
            said = (
                f"Proof or code is broken: {found}, more than the proven {proven}. Do not"
                " release this model; find the fault first."
            )
        elif math.isinf(self.proven):
            said = f"Nothing was promised: {found}."
        elif self.auc.low > self.highest_auc:
            said = f"Not settled: {found}, proven is {proven}.{self._high_auc}"
        else:
            said = f"Consistent with what is proven: {found}, proven is {proven}.{self._high_auc}"
        if self.claimed is not None and self.epsilon > self.claimed:
            said += f" The claim of ε = {values.claimed(self.claimed)} is refuted."
        return said

    @property
    def _high_auc(self) -> str:
        """What an AUC above the highest allowed means; nothing where it is not above."""
        auc = self.auc
        if auc.estimate <= self.highest_auc:
            return ""
        above = f" Its AUC, {auc.estimate:.3f}, lies above the {self.highest_auc:.3f} allowed,"
        interval = f"({auc.low:.3f}–{auc.high:.3f})"
        if auc.low <= self.highest_auc:
            return f"{above} within the uncertainty of {self.coins:,} coins {interval}."
        return (
            f"{above} and so does all of its interval {interval}: chance alone seldom does that,"
            " unless scores depend on each other. Play more coins, with another seed, before you"
            " rely on the proof."
        )

    def as_json(self) -> Json:
        """Everything, as plain values; an ε that is not finite as none."""
        proven = self.proven if math.isfinite(self.proven) else None
        said = {"status": self.status.value, "verdict": self.verdict}
        return {**asdict(self), "proven": proven, **said}


def check_confidence(confidence: float) -> None:
    """Refuse a confidence that means nothing."""
    if not 0.5 <= confidence < 1:
        raise ArgumentError(f"confidence is {confidence:g}; it must be at least 0.5 and below 1")


def conclude(
    attack: str,
    runs: Sequence[Played],
    delta: float,
    *,
    confidence: float = CONFIDENCE,
    attacks: int = 1,
) -> Finding:
    """The finding of an attack from all its runs.

    Guarantee: for a mechanism that keeps its promise the audited ε exceeds the true one with
    probability at most 1 − confidence. All bounds are taken, of all `attacks` that are tried, each
    with an equal part of the error; the largest counts.
    """
    check_confidence(confidence)
    first = runs[0]
    if any((run.event, run.relation) != (first.event, first.relation) for run in runs):
        raise ArgumentError("the runs of a game were not charged the same; audit them apart")
    scores = Scores.together([run.scores for run in runs])
    promised = Promised(first.event, first.relation)
    proven = promised.epsilon(delta)
    fitting = first.independent and first.noise_may_be_wrong and math.isfinite(proven)
    parts = attacks * (1 + first.independent + fitting)
    each = 1 - (1 - confidence) / parts
    found = [bounds.one_run(scores, delta, each)]
    if first.independent:
        found.append(bounds.clopper_pearson(scores, delta, each))
    if fitting:
        found.append(_fitted(scores, promised, delta, each))
    shown = Scores.together([run.by_record or run.scores for run in runs])
    false, true = shown.roc(120)
    most = promised.allowed(false)
    coins_per_other = len(scores) / len(shown.others)
    needed = {rate: math.ceil(coins_per_other / rate) for rate in SHOWN_FALSE_POSITIVES}
    return Finding(
        attack,
        first.relation.value,
        delta,
        confidence,
        _floor(max(bound.epsilon for bound in found)),
        proven,
        first.claimed,
        len(scores),
        tuple(found),
        shown.auc(confidence),
        promised.highest_auc(),
        {
            f"{rate:g}": shown.true_positives_at(rate, confidence)
            for rate, coins in needed.items()
            if len(scores) >= coins
        },
        {f"{rate:g}": coins for rate, coins in needed.items()},
        tuple(zip(false.tolist(), true.tolist(), most.tolist(), strict=True)),
    )


def _fitted(scores: Scores, promised: Promised, delta: float, confidence: float) -> Bound:
    return bounds.fitted_noise(
        scores,
        confidence,
        lambda noise, rate: float(promised.with_noise(noise).allowed(np.array([rate]))[0]),
        lambda noise: promised.with_noise(noise).epsilon(delta),
    )


def _floor(value: float) -> float:
    return math.floor(value * 1e4) / 1e4 if math.isfinite(value) else value
