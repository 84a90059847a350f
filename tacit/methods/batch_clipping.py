"""Batch clipping (paper 003): mini-sets of records are clipped as a whole.

k mini-sets of s records: k = 1 is the paper's batch clipping, s = 1 individual clipping. The sum
of the clipped gradients gets noise N(0, (2Cσ)²) and is divided by k.

Proof: docs/proofs/batch_clipping.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

from tacit.clipping.contract import Batch, LossFunction
from tacit.clipping.mini_sets import MomentumPass, OwnPass, SetPass, mean_gradient
from tacit.config import Recipe
from tacit.data.sampling import PartitionSampler, SubsetSampler
from tacit.errors import ArgumentError, NoProofError
from tacit.losses import blank_record
from tacit.method_sections import BatchClippingRecipe
from tacit.methods.base import Promise
from tacit.methods.clipped import RELEASED, ClippedMethod, Equipment
from tacit.methods.moments import Statistics
from tacit.methods.parts import Parts, check_budget
from tacit.models import batch_norm, validate
from tacit.noise.gaussian import GaussianNoise
from tacit.privacy import batch_plan
from tacit.privacy.batch_plan import BatchSchedule
from tacit.privacy.relations import Relation

_MOVES_TWICE = Relation.REPLACE_ONE
"""Whatever changes in a mini-set, its clipped gradient moves as if it were replaced."""


class BatchClipping(ClippedMethod):
    """Binds the drawing of mini-sets, clipping, noise and event.

    Guarantee: a round releases a vector that one record moves by at most 2C, with noise 2Cσ, on
    mini-sets drawn as the schedule says; the last step may release noised moments of all records.
    Nothing else that records touched leaves a step: BatchNorm keeps no buffers.
    """

    def __init__(
        self,
        schedule: BatchSchedule,
        sampler: SubsetSampler | PartitionSampler,
        equipment: Equipment,
        relation: Relation,
        statistics: Statistics,
    ) -> None:
        _check_sampler(schedule, sampler)
        self._plan = schedule
        self._statistics = statistics
        promise = Promise(
            method="batch-clipping",
            relation=relation,
            steps=schedule.steps + bool(schedule.moments),
            released=(*RELEASED, *_buffers_released(statistics)),
            sampling=_sampling_sentence(schedule),
            proof="docs/proofs/batch_clipping.md",
            details={
                "noise_multiplier": schedule.noise,
                "sampling_probability": schedule.probability,
                "expected_batch_size": schedule.batch_size,
                "records": schedule.records,
                "mini_sets": schedule.mini_sets,
            },
            changing_state=_changing_state(statistics),
        )
        noise = GaussianNoise(equipment.source, schedule.noise, _MOVES_TWICE)
        super().__init__(promise, schedule, sampler, noise, equipment, schedule.mini_sets)

    def draw(self, step: int) -> Iterable[Batch]:
        """The mini-sets of a round, each a batch; all records for the moments."""
        return super().draw(step) if step < self._plan.steps else self._statistics.everyone()

    def step(self, step: int, loss: LossFunction, batches: Iterable[Batch]) -> None:
        """One round, or after the last one the moments."""
        if step < self._plan.steps:
            super().step(step, loss, batches)
        else:
            self._statistics.release(step, batches)

    def as_released(self) -> AbstractContextManager[None]:
        """The model with the statistics that would be released now."""
        return self._statistics.filled()


def from_recipe(parts: Parts, chosen: BatchClippingRecipe) -> BatchClipping:
    """The method of a recipe, its noise solved for where only ε is given."""
    recipe, count = parts.recipe, len(parts.records)
    relation = recipe.privacy.relation or Relation.REPLACE_ONE
    schedule = _schedule(recipe, chosen, count, relation, _moments(parts, chosen))
    equipment = parts.equipment(chosen, schedule.set_size, _set_pass(parts, chosen))
    statistics = Statistics(
        chosen.batch_norm,
        parts.model,
        parts.records,
        parts.public,
        GaussianNoise(parts.source, chosen.moments_noise, _MOVES_TWICE),
        chosen.moments_clip,
        parts.memory,
    )
    return BatchClipping(schedule, _sampler(parts, schedule), equipment, relation, statistics)


def _schedule(
    recipe: Recipe, chosen: BatchClippingRecipe, records: int, relation: Relation, moments: int
) -> BatchSchedule:
    training, privacy = recipe.training, recipe.privacy
    schedule = BatchSchedule(
        records,
        training.batch_size,
        training.epochs,
        privacy.noise or 1.0,
        chosen.sampling,
        chosen.mini_sets,
        moments,
        chosen.moments_noise,
    )
    if privacy.noise is not None:
        check_budget(schedule.proven(privacy.delta, relation), recipe)
        return schedule
    assert privacy.epsilon is not None
    return batch_plan.noise_for(schedule, privacy.epsilon, privacy.delta, relation)


def _sampler(parts: Parts, schedule: BatchSchedule) -> SubsetSampler | PartitionSampler:
    if schedule.sampling == "subset":
        return SubsetSampler(schedule.records, schedule.batch_size, parts.source)
    return PartitionSampler(
        schedule.records,
        schedule.set_size,
        schedule.mini_sets,
        parts.source,
        in_turn=schedule.sampling == "once-per-epoch",
    )


def _set_pass(parts: Parts, chosen: BatchClippingRecipe) -> SetPass:
    if parts.set_pass is not None:
        return OwnPass(parts.set_pass)
    if chosen.set_pass == "mean":
        return mean_gradient
    return MomentumPass(chosen.pass_pieces, chosen.pass_rate, chosen.pass_momentum)


def _moments(parts: Parts, chosen: BatchClippingRecipe) -> int:
    """Layers whose moments are released with noise; refuses statistics that cannot be had."""
    count = len(batch_norm.layers(parts.model))
    if chosen.batch_norm == "public" and count and parts.public is None:
        raise ArgumentError(
            "batch_norm is 'public', but there are no public records: set data.public, or"
            " batch_norm to 'noisy' or 'none'"
        )
    if chosen.batch_norm != "noisy" or not count:
        return 0
    if parts.recipe.training.average:
        raise ArgumentError(
            "batch_norm is 'noisy' and training.average is set: the moments would be those of the"
            " last weights, not of the averaged ones; choose one of the two"
        )
    validate.check(validate.mended(parts.model), blank_record(parts.records)[0])
    return count


def _check_sampler(schedule: BatchSchedule, sampler: SubsetSampler | PartitionSampler) -> None:
    if schedule.sampling == "subset":
        fits = isinstance(sampler, SubsetSampler) and sampler.batch_size == schedule.batch_size
    else:
        fits = (
            isinstance(sampler, PartitionSampler)
            and sampler.in_turn == (schedule.sampling == "once-per-epoch")
            and (sampler.set_size, sampler.mini_sets) == (schedule.set_size, schedule.mini_sets)
        )
    if not fits or sampler.records != schedule.records:
        raise NoProofError(
            f"batch clipping was given a {type(sampler).__name__} that does not draw as the"
            f" schedule says ({schedule.sampling}, {schedule.mini_sets} mini-sets of"
            f" {schedule.set_size}); what is accounted for must be what runs"
        )


def _buffers_released(statistics: Statistics) -> tuple[str, ...]:
    if not batch_norm.layers(statistics.model) or statistics.kind == "none":
        return ()
    origin = "public records" if statistics.kind == "public" else "noised moments of all records"
    return (f"statistics of the normalisation layers, from {origin}",)


def _changing_state(statistics: Statistics) -> dict[str, str]:
    """The buffers of BatchNorm that are filled for the release, and why that is safe."""
    if statistics.kind == "none":
        return {}
    why = {"public": "public: statistics of public records", "noisy": "noised: charged moments"}
    return {
        f"{name}.{key}" if name else key: why[statistics.kind]
        for name in batch_norm.layers(statistics.model)
        for key in ("running_mean", "running_var", "num_batches_tracked")
    }


def _sampling_sentence(schedule: BatchSchedule) -> str:
    sets = f"{schedule.mini_sets} mini-sets of {schedule.set_size} records"
    if schedule.sampling == "subset":
        drawn = f"a fresh uniform subset of {schedule.batch_size} records"
        return f"{drawn} each round, cut into {sets}"
    if schedule.sampling == "partition":
        return f"{sets} each round, drawn uniformly from {schedule.sets} that were fixed before"
    return f"no sampling: {sets} each round, every record exactly once an epoch"
