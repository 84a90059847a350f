"""The audit audited: it must find every planted fault, and nothing in correct code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tacit.audit.acceptance import AcceptanceCounts
from tacit.audit.canaries import gradient_canaries
from tacit.audit.faults import FAULTS, Fault
from tacit.audit.protocol import Game
from tacit.audit.verdict import Finding, Status, conclude
from tacit.config import Recipe

_RECORDS = 4000
_HOSTILE_RECORDS = 800
_SETTINGS = {"epsilon": 4.0, "batch_size": 400, "epochs": 3, "clip": 0.5}


@dataclass(frozen=True)
class Tried:
    """A fault and what the audit said of it."""

    fault: Fault
    finding: Finding

    @property
    def caught(self) -> bool:
        """Whether the audit says that something is broken."""
        return self.finding.status is Status.BROKEN

    @property
    def passed(self) -> bool:
        """Whether the audit said what it should."""
        return self.caught is not self.fault.harmless


def self_test(
    faults: Sequence[Fault] = FAULTS,
    *,
    seed: int = 0,
    runs: int = 2,
    progress: Callable[[str, int, int], None] = lambda name, done, of: None,
) -> list[Tried]:
    """Play against each fault in turn: gradient canaries, or trials on a hostile loss."""
    tried = []
    for place, fault in enumerate(faults):
        progress(fault.name, place, len(faults))
        game, times = _game(fault, runs)
        with fault.plant():
            played = [game.play(seed + run, lambda done, of: None) for run in range(times)]
        tried.append(Tried(fault, conclude(game.name, played, game.delta)))
    progress("", len(faults), len(faults))
    return tried


def _game(fault: Fault, runs: int) -> tuple[Game, int]:
    """The game that shows a fault, and how often it is played."""
    if fault.hostile_trials:
        recipe = Recipe().with_settings(**fault.settings)
        return AcceptanceCounts(recipe, _HOSTILE_RECORDS), fault.hostile_trials
    recipe = Recipe().with_settings(**{**fault.settings, **_SETTINGS})
    return gradient_canaries(recipe, _RECORDS), runs
