"""DP-FTRL (Kairouz et al. 2021) and its successors: correlated noise on the running sums.

θ_t = θ_0 − s̃_t/λ, with s̃_t the noised sum of all clipped gradients so far, is plain gradient
descent with rate 1/λ on gradients whose noise is correlated; momentum likewise. So the method
shares the optimizers, and differs from DP-SGD in its batches, its noise and its event.

Proofs: docs/proofs/dpftrl.md (tree), docs/proofs/banded.md (banded, and with sampling).
"""

from __future__ import annotations

from tacit.config import Recipe
from tacit.data.sampling import FixedOrderSampler, GroupedPoissonSampler
from tacit.errors import ArgumentError, NoProofError
from tacit.method_sections import DpFtrlRecipe
from tacit.methods.base import Promise
from tacit.methods.clipped import RELEASED, ClippedMethod, Equipment
from tacit.methods.parts import Parts, check_budget, step_count
from tacit.noise.correlated import BandedStream, CorrelatedNoise, Memory, TreeStream
from tacit.noise.source import RandomSource
from tacit.privacy import amplified, fixed_order
from tacit.privacy.amplified import GroupedSchedule
from tacit.privacy.fixed_order import Correlation, FixedOrderSchedule
from tacit.privacy.relations import Relation

_MOST_BYTES = 4 << 30


class DpFtrl(ClippedMethod):
    """Binds the order of batches, clipping, correlated noise and event.

    Guarantee: all steps up to t together release one Gaussian mechanism whose squared
    sensitivity is what the schedule computed from the order that `sampler` follows.
    """

    def __init__(
        self,
        schedule: FixedOrderSchedule,
        sampler: FixedOrderSampler,
        equipment: Equipment,
        memory: Memory,
        relation: Relation,
    ) -> None:
        if not isinstance(sampler, FixedOrderSampler):
            raise NoProofError(
                f"DP-FTRL was given a {type(sampler).__name__}; its proof needs an order fixed in"
                " advance: use FixedOrderSampler"
            )
        correlation = schedule.correlation
        if sampler.reshuffled and correlation.order == "same":
            raise NoProofError(
                "batches are reshuffled between epochs, but the sensitivity was computed for one"
                " order; keep the order, or account for order 'reshuffled'"
            )
        if sampler.batches != schedule.batches:
            raise NoProofError(
                f"the order has {sampler.batches} batches per epoch, the schedule"
                f" {schedule.batches}; they must agree"
            )
        stream = stream_for(schedule, equipment.engine.layout.size, equipment.source, memory)
        promise = Promise(
            method="dpftrl",
            relation=relation,
            steps=schedule.steps,
            released=RELEASED,
            sampling=_order_sentence(schedule),
            proof="docs/proofs/banded.md" if schedule.bands else "docs/proofs/dpftrl.md",
            details={
                "noise_multiplier": schedule.noise,
                "expected_batch_size": schedule.batch_size,
                "records": schedule.records,
                "mechanism": _mechanism_sentence(schedule),
                "sensitivity_squared": schedule.sensitivity_squared,
            },
        )
        noise = CorrelatedNoise(stream, schedule.noise, equipment.source)
        super().__init__(promise, schedule, sampler, noise, equipment)


class AmplifiedBanded(ClippedMethod):
    """Banded noise on Poisson samples from groups that take turns.

    Guarantee: each round of as many steps as there are bands releases
    PoissonSampled(q, Gaussian(σ)), q the rate within a group, and nothing else.
    """

    def __init__(
        self,
        schedule: GroupedSchedule,
        sampler: GroupedPoissonSampler,
        equipment: Equipment,
        memory: Memory,
        relation: Relation,
    ) -> None:
        if sampler.groups != schedule.bands or sampler.probability != schedule.probability:
            raise NoProofError(
                f"the sampler has {sampler.groups} groups, the factor {schedule.bands} bands; a"
                " record's uses must lie as many steps apart as there are bands"
            )
        size = equipment.engine.layout.size
        _check_memory(schedule.bands, size)
        stream = BandedStream(schedule.bands, size, equipment.source, memory)
        promise = Promise(
            method="dpftrl",
            relation=relation,
            steps=schedule.steps,
            released=RELEASED,
            sampling=(
                f"{schedule.bands} groups by position take turns; every record of the group"
                f" independently with probability {sampler.probability:.8g}"
            ),
            proof="docs/proofs/banded.md",
            details={
                "noise_multiplier": schedule.noise,
                "sampling_probability": sampler.probability,
                "expected_batch_size": schedule.batch_size,
                "records": schedule.records,
                "mechanism": f"banded square root with {schedule.bands} bands, with sampling",
            },
        )
        scale = schedule.noise * schedule.column_norm
        noise = CorrelatedNoise(stream, scale, equipment.source)
        super().__init__(promise, schedule, sampler, noise, equipment)


def from_recipe(parts: Parts, chosen: DpFtrlRecipe) -> ClippedMethod:
    """The method of a recipe, its noise solved for where only ε is given."""
    recipe, count = parts.recipe, len(parts.records)
    relation = recipe.privacy.relation or Relation.ZERO_OUT
    size, equipment = recipe.training.batch_size, parts.equipment(chosen)
    if chosen.mechanism == "amplified":
        grouped = _grouped_schedule(recipe, chosen, count, relation)
        groups = GroupedPoissonSampler(count, size, grouped.bands, parts.source)
        return AmplifiedBanded(grouped, groups, equipment, parts.memory, relation)
    schedule = _fixed_order_schedule(recipe, chosen, count, relation)
    order = FixedOrderSampler(count, size, parts.source, chosen.order == "reshuffled")
    return DpFtrl(schedule, order, equipment, parts.memory, relation)


def _fixed_order_schedule(
    recipe: Recipe, chosen: DpFtrlRecipe, records: int, relation: Relation
) -> FixedOrderSchedule:
    privacy = recipe.privacy
    schedule = FixedOrderSchedule(
        records,
        recipe.training.batch_size,
        step_count(recipe, records),
        privacy.noise or 1.0,
        Correlation(
            "banded" if chosen.mechanism == "banded" else "tree",
            chosen.restart_every,
            chosen.completion,
            chosen.reduced,
            chosen.order,
            chosen.bands,
        ),
    )
    if privacy.noise is not None:
        check_budget(schedule.proven(privacy.delta, relation), recipe)
        return schedule
    return fixed_order.noise_for(schedule, privacy.epsilon or 0.0, privacy.delta, relation)


def _grouped_schedule(
    recipe: Recipe, chosen: DpFtrlRecipe, records: int, relation: Relation
) -> GroupedSchedule:
    privacy, size = recipe.privacy, recipe.training.batch_size
    if chosen.order != "same" or chosen.restart_every or chosen.completion:
        raise ArgumentError(
            "order, restart_every and completion are not for mechanism 'amplified', which samples"
        )
    if privacy.noise is not None and not chosen.bands:
        raise ArgumentError("mechanism 'amplified' with a given noise needs method.bands too")
    bands = chosen.bands or 1
    schedule = GroupedSchedule(
        records, size, step_count(recipe, records), privacy.noise or 1.0, bands
    )
    if privacy.noise is not None:
        check_budget(schedule.proven(privacy.delta, relation), recipe)
        return schedule
    solver = amplified.noise_for if chosen.bands else amplified.best_bands
    return solver(schedule, privacy.epsilon or 0.0, privacy.delta, relation)


def stream_for(
    schedule: FixedOrderSchedule, size: int, source: RandomSource, memory: Memory
) -> BandedStream | TreeStream:
    """The noise of a schedule, for vectors of this size."""
    correlation = schedule.correlation
    _check_memory(schedule.bands, size)
    if correlation.mechanism == "banded":
        return BandedStream(schedule.bands, size, source, memory)
    return TreeStream(
        correlation.restart_every * schedule.batches or schedule.steps,
        size,
        source,
        memory,
        reduced=correlation.reduced,
        completion=correlation.completion,
    )


def _check_memory(bands: int, size: int) -> None:
    needed = 8 * bands * size
    if needed > _MOST_BYTES:
        raise ArgumentError(
            f"bands is {bands}: for {size:,} weights the noise in use would take"
            f" {needed / 2**30:.1f} GiB; set method.bands to at most {_MOST_BYTES // (8 * size)}"
        )


def _order_sentence(schedule: FixedOrderSchedule) -> str:
    each = f"every record at most once in each epoch of {schedule.batches} batches"
    if schedule.correlation.order == "reshuffled":
        return f"no sampling: {each}, in a new order each epoch, accounted for at the worst order"
    return f"no sampling: {each}, in one order fixed before training"


def _mechanism_sentence(schedule: FixedOrderSchedule) -> str:
    correlation = schedule.correlation
    if schedule.bands:
        return f"banded square root with {schedule.bands} bands"
    parts = ["binary tree"]
    if correlation.restart_every:
        filled = ", filled up first" if correlation.completion else ""
        parts.append(f"a new one every {correlation.restart_every} epochs{filled}")
    if correlation.reduced:
        parts.append("variance-reduced estimates")
    return "; ".join(parts)
