"""DP-SGD (Abadi et al. 2016): Poisson samples, per-record clipping, Gaussian noise on the sum.

Proof: docs/proofs/dpsgd.md.
"""

from __future__ import annotations

from dp_accounting import DpEvent

from tacit.config import Recipe
from tacit.data.sampling import PoissonSampler
from tacit.errors import NoProofError
from tacit.method_sections import DpSgdRecipe
from tacit.methods.base import Promise
from tacit.methods.clipped import RELEASED, ClippedMethod, Equipment
from tacit.methods.parts import Parts, check_budget, step_count
from tacit.noise.gaussian import GaussianNoise
from tacit.privacy import events
from tacit.privacy.plan import Question, SampledSchedule, solve
from tacit.privacy.relations import Relation


class DpSgd(ClippedMethod):
    """Binds sampler, clipping, noise and event, so that none can change without the others.

    Guarantee: step t releases PoissonSampled(q, Gaussian(σ)) under add-or-remove-one and nothing
    else; q and σ are those of the schedule. The sum is divided by the expected batch size.
    """

    def __init__(
        self,
        schedule: SampledSchedule,
        sampler: PoissonSampler,
        equipment: Equipment,
        relation: Relation,
    ) -> None:
        if not isinstance(sampler, PoissonSampler):
            raise NoProofError(
                f"DP-SGD was given a {type(sampler).__name__}; its proof needs Poisson samples:"
                " use PoissonSampler"
            )
        if sampler.probability != schedule.probability:
            raise NoProofError(
                f"records are sampled with probability {sampler.probability:.8g}, the schedule"
                f" says {schedule.probability:.8g}; they must agree"
            )
        promise = Promise(
            method="dpsgd",
            relation=relation,
            steps=schedule.steps,
            released=RELEASED,
            sampling=(
                f"Poisson: every record independently with probability {sampler.probability:.8g}"
                " at every step"
            ),
            proof="docs/proofs/dpsgd.md",
            details={
                "noise_multiplier": schedule.noise,
                "sampling_probability": sampler.probability,
                "expected_batch_size": schedule.batch_size,
                "records": schedule.records,
            },
        )
        noise = GaussianNoise(equipment.source, schedule.noise)
        super().__init__(promise, schedule, sampler, noise, equipment)
        self._release = sampler.event(events.gaussian(schedule.noise))

    def charge(self, step: int) -> DpEvent:
        """The same at every step: the noised sum, amplified by the sampling that really runs."""
        return self._release


def from_recipe(parts: Parts, chosen: DpSgdRecipe) -> DpSgd:
    """The method of a recipe, its noise solved for where only ε is given."""
    recipe, count = parts.recipe, len(parts.records)
    relation = recipe.privacy.relation or Relation.ADD_OR_REMOVE_ONE
    return DpSgd(
        _schedule(recipe, count, relation),
        PoissonSampler(count, recipe.training.batch_size, parts.source),
        parts.equipment(chosen),
        relation,
    )


def _schedule(recipe: Recipe, records: int, relation: Relation) -> SampledSchedule:
    training, privacy = recipe.training, recipe.privacy
    steps = step_count(recipe, records)
    if privacy.noise is not None:
        given = SampledSchedule(records, training.batch_size, steps, privacy.noise)
        check_budget(given.proven(privacy.delta, relation), recipe)
        return given
    return solve(
        Question(
            delta=privacy.delta,
            epsilon=privacy.epsilon,
            steps=steps,
            batch_size=training.batch_size,
            records=records,
            relation=relation,
        )
    )
