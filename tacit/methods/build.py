"""From a recipe to its method: sampler, clipping, noise and event are bound together here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from tacit.clipping import rules
from tacit.clipping.contract import ClippingEngine, ClippingRule
from tacit.clipping.engines import engine_for
from tacit.config import ClippedRecipe, DpFtrlRecipe, DpSgdRecipe, PlainRecipe, Recipe
from tacit.data.batches import Gatherer, Records
from tacit.data.sampling import (
    FixedOrderSampler,
    GroupedPoissonSampler,
    PoissonSampler,
    ShuffledSampler,
)
from tacit.errors import ArgumentError
from tacit.methods.base import Method
from tacit.methods.dpftrl import AmplifiedBanded, DpFtrl
from tacit.methods.dpsgd import DpSgd
from tacit.methods.plain import PlainSgd
from tacit.noise.source import RandomSource
from tacit.noise.sums import SumLog
from tacit.optim import PrivateOptimizer
from tacit.privacy import amplified, fixed_order
from tacit.privacy.amplified import GroupedSchedule
from tacit.privacy.fixed_order import Correlation, FixedOrderSchedule
from tacit.privacy.plan import Question, SampledSchedule, solve, steps_for
from tacit.privacy.relations import Relation

_MOST_STEPS = 10_000_000


@dataclass(frozen=True)
class Parts:
    """What every method is made from. `memory` holds what it must remember between steps."""

    recipe: Recipe
    model: nn.Module
    records: Records
    optimizer: PrivateOptimizer
    source: RandomSource
    memory: dict[str, Tensor]
    sums: SumLog

    @property
    def gatherer(self) -> Gatherer:
        """The records, ready to be gathered by index."""
        training = self.recipe.training
        return Gatherer(self.records, training.micro_batch, training.views, training.augment)

    def engine(self, rule: ClippingRule) -> ClippingEngine:
        """The engine that clips by this rule."""
        run = self.recipe.run
        return engine_for(self.model, rule, run.engine, deterministic=run.deterministic)


def build(parts: Parts) -> Method:
    """The method that the recipe names."""
    return _BUILDERS[type(parts.recipe.method)](parts)


def step_count(recipe: Recipe, records: int) -> int:
    """The steps of a recipe on so many records."""
    size = recipe.training.batch_size
    if size > records:
        raise ArgumentError(
            f"batch_size is {size}, larger than the {records} training records; choose a smaller"
            " batch"
        )
    epochs = recipe.training.epochs
    if epochs * records / size > _MOST_STEPS:
        raise ArgumentError(
            f"epochs is {epochs:g}, which makes more than {_MOST_STEPS:,} steps; train for fewer"
        )
    if isinstance(recipe.method, DpFtrlRecipe) and recipe.method.mechanism != "amplified":
        return math.ceil(epochs * -(-records // size) - 1e-9)
    return steps_for(epochs, records, size)


def clipping_sentence(recipe: Recipe) -> str:
    """How gradients are clipped, for the certificate."""
    method = recipe.method
    if not isinstance(method, ClippedRecipe):
        return "none"
    rule = "normalised to" if method.clipping == "automatic" else "clipped to"
    noise = "normal noise, correlated over the steps," if method.correlated else "normal noise"
    return (
        f"each record's gradient is {rule} norm {method.clip:g}, their sum gets {noise} and is"
        " divided by the expected batch size"
    )


def _rule(method: ClippedRecipe) -> ClippingRule:
    if method.clipping == "automatic":
        return rules.Automatic(method.clip)
    return rules.Flat(method.clip)


def _dpsgd(parts: Parts) -> Method:
    recipe, count = parts.recipe, len(parts.records)
    assert isinstance(recipe.method, DpSgdRecipe)
    relation = recipe.privacy.relation or Relation.ADD_OR_REMOVE_ONE
    return DpSgd(
        _sampled_schedule(recipe, count, relation),
        PoissonSampler(count, recipe.training.batch_size, parts.source),
        parts.engine(_rule(recipe.method)),
        parts.gatherer,
        parts.optimizer,
        parts.source,
        relation,
    )


def _dpftrl(parts: Parts) -> Method:
    recipe, count = parts.recipe, len(parts.records)
    chosen = recipe.method
    assert isinstance(chosen, DpFtrlRecipe)
    relation = recipe.privacy.relation or Relation.ZERO_OUT
    size, engine = recipe.training.batch_size, parts.engine(_rule(chosen))
    if chosen.mechanism == "amplified":
        grouped = _grouped_schedule(recipe, chosen, count, relation)
        return AmplifiedBanded(
            grouped,
            GroupedPoissonSampler(count, size, grouped.bands, parts.source),
            engine,
            parts.gatherer,
            parts.optimizer,
            parts.source,
            parts.memory,
            parts.sums,
            relation,
        )
    return DpFtrl(
        _fixed_order_schedule(recipe, chosen, count, relation),
        FixedOrderSampler(count, size, parts.source, chosen.order == "reshuffled"),
        engine,
        parts.gatherer,
        parts.optimizer,
        parts.source,
        parts.memory,
        parts.sums,
        relation,
    )


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


def _plain(parts: Parts) -> Method:
    count, size = len(parts.records), parts.recipe.training.batch_size
    return PlainSgd(
        parts.model,
        step_count(parts.recipe, count),
        ShuffledSampler(count, size, parts.source),
        parts.gatherer,
        parts.optimizer,
        parts.source,
    )


def _sampled_schedule(recipe: Recipe, records: int, relation: Relation) -> SampledSchedule:
    """The steps and noise of a recipe, solved for where only ε is given."""
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


def check_budget(proven: float, recipe: Recipe) -> None:
    """Refuse a noise whose cost exceeds the ε that was given with it."""
    privacy = recipe.privacy
    if privacy.epsilon is not None and proven > privacy.epsilon:
        raise ArgumentError(
            f"noise is {privacy.noise:g}, which costs ε = {proven:.4f}, more than epsilon ="
            f" {privacy.epsilon:g}; leave out one of the two, or use more noise"
        )


_BUILDERS: dict[type, Callable[[Parts], Method]] = {
    DpSgdRecipe: _dpsgd,
    DpFtrlRecipe: _dpftrl,
    PlainRecipe: _plain,
}
