"""What every method is made from, and what their builders share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn

from tacit.clipping import rules
from tacit.clipping.contract import ClippingRule
from tacit.clipping.engines import engine_for
from tacit.config import Recipe
from tacit.data.batches import Gatherer, Records
from tacit.errors import ArgumentError
from tacit.method_sections import ClippedRecipe
from tacit.methods.clipped import Equipment
from tacit.noise.source import RandomSource
from tacit.noise.sums import SumLog
from tacit.optim import PrivateOptimizer
from tacit.privacy.plan import steps_for

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

    def equipment(self, method: ClippedRecipe) -> Equipment:
        """Engine, records and optimizer for a method that clips gradients."""
        run = self.recipe.run
        engine = engine_for(
            self.model, rule_for(method), run.engine, deterministic=run.deterministic
        )
        return Equipment(engine, self.gatherer, self.optimizer, self.source)


def rule_for(method: ClippedRecipe) -> ClippingRule:
    """How the recipe clips."""
    if method.clipping == "automatic":
        return rules.Automatic(method.clip)
    return rules.Flat(method.clip)


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
    if recipe.method.in_order:
        return math.ceil(epochs * -(-records // size) - 1e-9)
    return steps_for(epochs, records, size)


def check_budget(proven: float, recipe: Recipe) -> None:
    """Refuse a noise whose cost exceeds the ε that was given with it."""
    privacy = recipe.privacy
    if privacy.epsilon is not None and proven > privacy.epsilon:
        raise ArgumentError(
            f"noise is {privacy.noise:g}, which costs ε = {proven:.4f}, more than epsilon ="
            f" {privacy.epsilon:g}; leave out one of the two, or use more noise"
        )
