"""For each method, which canaries to watch and what to make of what is seen of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.audit import statistics
from tacit.audit.statistics import Array, Seen
from tacit.errors import NoProofError
from tacit.methods.base import Method
from tacit.methods.batch_clipping import BatchClipping
from tacit.methods.clipped import ClippedMethod
from tacit.methods.dpftrl import AmplifiedBanded, DpFtrl, stream_for
from tacit.methods.dpsgd import DpSgd
from tacit.methods.selective import Selective
from tacit.privacy.amplified import GroupedSchedule
from tacit.privacy.batch_plan import BatchSchedule
from tacit.privacy.fixed_order import FixedOrderSchedule
from tacit.privacy.plan import SampledSchedule
from tacit.privacy.selective import SelectiveSchedule

Places = NDArray[np.int64]
_EXPOSED = 0.95  # of the squared distance between the worlds of the most exposed record


@dataclass(frozen=True)
class Attacker:
    """Which records to watch, and what to make of what is seen of them step by step.

    `independent` says that for a method that keeps its promise the scores are independent.
    """

    canaries: Places
    score: Callable[[Seen], Array]
    independent: bool = True


def attacker_for(method: Method, canaries: Places, replaced: bool) -> Attacker:
    """The strongest attacker known here for what this method releases of these records."""
    if isinstance(method, DpSgd):
        return _sampled(method, canaries, replaced)
    if isinstance(method, AmplifiedBanded):
        return _in_groups(method, canaries, replaced)
    if isinstance(method, DpFtrl):
        return _in_order(method, canaries, replaced)
    if isinstance(method, BatchClipping):
        return _in_mini_sets(method, canaries)
    if isinstance(method, Selective):
        return _selected(method, canaries, replaced)
    raise NoProofError(
        f"there are no gradient canaries for method {method.promise.method!r}; use attacks on the"
        " trained model"
    )


def _sampled(method: DpSgd, canaries: Places, replaced: bool) -> Attacker:
    schedule = method.schedule
    assert isinstance(schedule, SampledSchedule)
    rate, noise = schedule.probability, schedule.noise
    return Attacker(canaries, lambda seen: statistics.sampled(seen, rate, noise, replaced))


def _selected(method: Selective, canaries: Places, replaced: bool) -> Attacker:
    """Only accepted candidates show; that they were accepted may depend on every record."""
    schedule = method.schedule
    assert isinstance(schedule, SelectiveSchedule)
    rate, noise = schedule.probability, schedule.noise

    def score(seen: Seen) -> Array:
        return statistics.sampled(seen[seen.any(axis=1)], rate, noise, replaced)

    return Attacker(canaries, score, independent=False)


def _in_mini_sets(method: BatchClipping, canaries: Places) -> Attacker:
    """A canary turns its mini-set's clipped gradient round; noise is twice the multiplier."""
    schedule = method.schedule
    assert isinstance(schedule, BatchSchedule)
    noise = 2 * schedule.noise
    if schedule.sampling != "once-per-epoch":
        rate = schedule.probability
        return Attacker(
            canaries,
            lambda seen: statistics.sampled(seen, rate, noise, replaced=True),
            independent=False,
        )
    uses = _uses(method, schedule.steps, schedule.records)[:, canaries]
    apart = np.eye(schedule.steps)
    return Attacker(
        canaries,
        lambda seen: statistics.in_order(seen, uses, apart, noise, replaced=True),
        independent=False,
    )


def _in_groups(method: AmplifiedBanded, canaries: Places, replaced: bool) -> Attacker:
    schedule = method.schedule
    assert isinstance(schedule, GroupedSchedule)
    groups = canaries % schedule.bands
    first = groups < (schedule.steps % schedule.bands or schedule.bands)
    return Attacker(
        canaries[first],
        lambda seen: statistics.in_groups(
            seen, schedule.bands, schedule.probability, schedule.noise, groups[first], replaced
        ),
    )


def _in_order(method: DpFtrl, canaries: Places, replaced: bool) -> Attacker:
    """Where a batch's place in the order decides how much shows, only the most exposed count."""
    schedule = method.schedule
    assert isinstance(schedule, FixedOrderSchedule)
    draws = statistics.most_draws(schedule.steps)
    stream = stream_for(schedule, draws, statistics.Draws(draws), {})
    covariance = statistics.noise_covariance(stream, schedule.steps)
    uses = _uses(method, schedule.steps, schedule.records)[:, canaries]
    patterns, of_canary = np.unique(uses, axis=1, return_inverse=True)
    shown = statistics.exposure(patterns, covariance)[of_canary.ravel()]
    mine = shown >= _EXPOSED * shown.max()
    return Attacker(
        canaries[mine],
        lambda seen: statistics.in_order(seen, uses[:, mine], covariance, schedule.noise, replaced),
    )


def _uses(method: ClippedMethod, steps: int, records: int) -> Array:
    """One where a record takes part in a step."""
    uses = np.zeros((steps, records), dtype=np.float32)
    for step in range(steps):
        uses[step, method.sampler.draw(step)] = 1.0
    return uses.astype(np.float64)
