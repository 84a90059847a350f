"""The audit audited: it must find every planted fault, and nothing in correct code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tacit.audit.acceptance import AcceptanceCounts
from tacit.audit.bounds import MOST_EPSILON
from tacit.audit.canaries import gradient_canaries
from tacit.audit.faults import FAULTS, FEW_ACCEPTED, Fault
from tacit.audit.floating_point import COORDINATES, FloatingPointGame
from tacit.audit.protocol import Game
from tacit.audit.verdict import Finding, Status, conclude
from tacit.config import Recipe
from tacit.methods.parts import step_count

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
    """Play against each fault in turn: gradient canaries, trials on a hostile loss, or a
    floating-point attack on the noise."""
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
    if fault.distinguisher:
        return FloatingPointGame(fault.distinguisher), 1
    recipe = _recipe(fault)
    if fault.hostile_trials:
        return AcceptanceCounts(recipe, _HOSTILE_RECORDS), fault.hostile_trials
    return gradient_canaries(recipe, _RECORDS), runs


def _recipe(fault: Fault) -> Recipe:
    return Recipe().with_settings(**fault.settings, **({} if fault.hostile_trials else _SETTINGS))


def sizes() -> dict[str, float]:
    """How large the games are, and the most that they can show."""
    canaries = _recipe(next(fault for fault in FAULTS if not fault.hostile_trials))
    hostile = _recipe(next(fault for fault in FAULTS if fault.hostile_trials))
    return {
        "records": _RECORDS,
        "steps": step_count(canaries, _RECORDS),
        "batch_size": canaries.training.batch_size,
        "hostile_records": _HOSTILE_RECORDS,
        "hostile_trials": step_count(hostile, _HOSTILE_RECORDS),
        "hostile_updates_charged": FEW_ACCEPTED,
        "hostile_delta": hostile.privacy.delta,
        "floating_point_games": FloatingPointGame.games,
        "floating_point_coordinates": COORDINATES,
        "most_epsilon": MOST_EPSILON,
    }
