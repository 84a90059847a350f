"""For each method, which canaries to watch and what to make of what is seen of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.audit import statistics
from tacit.audit.statistics import Array, Seen
from tacit.config import Recipe
from tacit.errors import NoProofError
from tacit.methods.base import Method
from tacit.methods.dpftrl import AmplifiedBanded, DpFtrl, stream_for
from tacit.methods.dpsgd import DpSgd
from tacit.privacy.amplified import GroupedSchedule
from tacit.privacy.fixed_order import FixedOrderSchedule
from tacit.privacy.plan import SampledSchedule

_EXPOSED = 0.95  # of the squared distance between the worlds of the most exposed record


@dataclass(frozen=True)
class Attacker:
    """Knows which records to watch, and scores what is seen of them step by step."""

    canaries: Tensor
    score: Callable[[Seen], Array]

    def scores(self, seen: Tensor) -> Array:
        """One score for each watched canary."""
        return self.score(seen.numpy())


def attacker_for(method: Method, recipe: Recipe, replaced: bool) -> Attacker:
    """The strongest attacker known here for what this method releases."""
    if isinstance(method, DpSgd):
        return _sampled(method, replaced)
    if isinstance(method, AmplifiedBanded):
        return _in_groups(method, replaced)
    if isinstance(method, DpFtrl):
        return _in_order(method, replaced)
    raise NoProofError(
        f"there are no gradient canaries for method {recipe.method.name!r}; use attacks on the"
        " trained model"
    )


def _sampled(method: DpSgd, replaced: bool) -> Attacker:
    schedule = method.schedule
    assert isinstance(schedule, SampledSchedule)
    rate, noise = schedule.probability, schedule.noise
    return Attacker(
        torch.arange(schedule.records),
        lambda seen: statistics.sampled(seen, rate, noise, replaced),
    )


def _in_groups(method: AmplifiedBanded, replaced: bool) -> Attacker:
    schedule = method.schedule
    assert isinstance(schedule, GroupedSchedule)
    groups = np.arange(schedule.records) % schedule.bands
    mine = np.flatnonzero(groups < (schedule.steps % schedule.bands or schedule.bands))
    return Attacker(
        torch.from_numpy(mine),
        lambda seen: statistics.in_groups(
            seen, schedule.bands, schedule.probability, schedule.noise, groups[mine], replaced
        ),
    )


def _in_order(method: DpFtrl, replaced: bool) -> Attacker:
    """Where a batch's place in the order decides how much shows, only the most exposed count."""
    schedule = method.schedule
    assert isinstance(schedule, FixedOrderSchedule)
    steps, records = schedule.steps, schedule.records
    draws = statistics.most_draws(steps)
    stream = stream_for(schedule, draws, statistics.Draws(draws), {})
    covariance = statistics.noise_covariance(stream, steps)
    uses = np.zeros((steps, records), dtype=np.float32)
    for step in range(steps):
        uses[step, method.sampler.draw(step)] = 1.0
    patterns, of_record = np.unique(uses, axis=1, return_inverse=True)
    shown = statistics.exposure(patterns.astype(np.float64), covariance)[of_record.ravel()]
    mine = np.flatnonzero(shown >= _EXPOSED * shown.max())
    mine_uses = uses[:, mine].astype(np.float64)
    return Attacker(
        torch.from_numpy(mine),
        lambda seen: statistics.in_order(seen, mine_uses, covariance, schedule.noise, replaced),
    )
