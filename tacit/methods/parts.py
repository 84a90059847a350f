"""What every method is made from, and what their builders share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tacit.clipping.contract import ClippingEngine, ClippingRule, LossFunction
from tacit.clipping.engines import engine_for
from tacit.clipping.exact.engine import ExactEngine
from tacit.clipping.exact.stages.stage import NotRowwiseError
from tacit.clipping.groups import Groups
from tacit.clipping.mini_sets import MiniSetEngine, SetPass, mean_gradient
from tacit.clipping.numerics import Numerics
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import Layerwise
from tacit.clipping.thresholds import NormEstimate, Thresholds, mean_norms
from tacit.config import Recipe
from tacit.data.batches import Gatherer, Records, TensorRecords
from tacit.errors import ArgumentError
from tacit.losses import blank_record, cross_entropy
from tacit.method_sections import ClippedRecipe
from tacit.methods.clipped import Equipment
from tacit.noise.source import RandomSource
from tacit.optim import PrivateOptimizer
from tacit.privacy.certificate import round_up
from tacit.privacy.plan import steps_for

_MOST_STEPS = 10_000_000
_SEVERAL_LAYERS = (
    "a proof for several layers takes more time, and was not asked for; set privacy.numerics to"
    " 'proven'"
)


@dataclass(frozen=True)
class Parts:
    """What every method is made from. `memory` holds what it must remember between steps."""

    recipe: Recipe
    model: nn.Module
    records: Records
    optimizer: PrivateOptimizer
    source: RandomSource
    memory: dict[str, Tensor]
    public: Records | None = None
    """Records without a guarantee, to estimate thresholds and statistics on."""
    loss: LossFunction = cross_entropy
    promised: dict[str, Any] | None = None
    """What the ledger of a resumed run promised."""
    set_pass: SetPass | None = None
    """A pass of the user's own over a mini-set."""
    own_loop: bool = False
    """Whether batches and losses come from a loop of the user's own."""
    known_layers: bool = False
    """Whether the model is made of layers that are known to write to nothing of their own."""

    def gatherer(self, set_size: int = 1) -> Gatherer:
        """The records, ready to be gathered by index; mini-sets are never cut."""
        training = self.recipe.training
        pieces = training.micro_batch if set_size == 1 else set_size
        return Gatherer(self.records, pieces, training.views, training.augment)

    def engine(self, model: nn.Module, rule: ClippingRule) -> ClippingEngine:
        """What computes clipped sums of a model's gradients, as the recipe asks for."""
        run = self.recipe.run
        return engine_for(
            model,
            rule,
            run.engine,
            deterministic=run.deterministic,
            memory_ceiling=run.memory_ceiling << 20,
        )

    def equipment(
        self, method: ClippedRecipe, set_size: int = 1, set_pass: SetPass = mean_gradient
    ) -> Equipment:
        """Engine, records and optimizer for a method that clips gradients.

        With `set_size` above one what is clipped is a mini-set of so many records, not a record.
        """
        thresholds = self.thresholds(method, set_size)
        rule = thresholds.rule(0)
        engine: ClippingEngine
        if set_size > 1:
            engine = MiniSetEngine(self.model, rule, set_pass)
            numerics = Numerics("idealised", "whole mini-sets are clipped, not records")
        else:
            engine, numerics = self._best_engine(rule)
        gatherer = self.gatherer(set_size)
        return Equipment(
            *(engine, gatherer, self.optimizer, self.source, thresholds, numerics),
            known_layers=self.known_layers and set_size == 1,
        )

    def _best_engine(self, rule: ClippingRule) -> tuple[ClippingEngine, Numerics]:
        """The engine whose sums are proven, where it covers the run; else the recipe's."""
        reason = self._outside_the_proof()
        if not reason:
            try:
                exact = ExactEngine(self.model, rule, self.loss, len(self.records))
                with torch.random.fork_rng(devices=[]):
                    exact.check(blank_record(self.records)[0])
            except NotRowwiseError as error:
                reason = str(error)
            else:
                if self.recipe.privacy.numerics == "proven" or len(exact.layers) == 1:
                    return exact, Numerics("proven", layers=exact.layers)
                reason = _SEVERAL_LAYERS
        return self.engine(self.model, rule), Numerics("idealised", reason)

    def _outside_the_proof(self) -> str:
        """What, apart from the model, keeps sums from being proven; empty if nothing does."""
        run, training = self.recipe.run, self.recipe.training
        if self.own_loop:
            return "batches and losses come from a loop of your own; use tacit.fit"
        if self.loss is not cross_entropy:
            return "the loss is a function of your own; use tacit.cross_entropy"
        if not isinstance(self.records, TensorRecords):
            return "records come from a Dataset of your own; give tensors or arrays"
        if training.views > 1:
            return f"training.views is {training.views}; set it to 1"
        if run.engine != "fast":
            return f"run.engine is {run.engine!r}; leave it out"
        return ""

    def thresholds(self, method: ClippedRecipe, set_size: int) -> Thresholds:
        """How the recipe clips, step by step."""
        size = self.recipe.training.batch_size
        epoch = max(1, round(len(self.records) / size))
        groups = self._groups(method, set_size)
        estimate = None
        if method.estimates and self.public is not None:
            every = max(1, round(method.estimate_every * epoch))
            estimate = NormEstimate(self.public, groups, every, set_size, memory=self.memory)
        return Thresholds(
            method.clipping,
            groups,
            method.clip,
            method.clip_decay,
            epoch,
            method.thresholds,
            method.noise_weights,
            estimate,
        )

    def _groups(self, method: ClippedRecipe, set_size: int) -> Groups:
        if self.promised is not None and "groups" in self.promised:
            return Groups(tuple(tuple(group) for group in self.promised["groups"]))
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        if method.groups == "tensors":
            return Groups.tensors(names)
        layers = Groups.layers(names)
        if method.groups == "layers":
            return layers
        if self.public is None:
            raise ArgumentError(
                f"groups is {method.groups}: layers are grouped by their norms on public records,"
                " but there are none; set data.public, or groups to 'layers' or 'tensors'"
            )
        estimate = NormEstimate(self.public, layers, 1, set_size)
        rule = Layerwise(layers, (1.0,) * len(layers))
        probing = (
            MiniSetEngine(self.model, rule) if set_size > 1 else ReferenceEngine(self.model, rule)
        )
        self.model.train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            norms = mean_norms(probing, layers, self.loss, estimate.batches(0))
        return layers.merged(norms.tolist(), method.groups)


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
            f"noise is {privacy.noise:g}, which costs ε = {round_up(proven)}, more than epsilon ="
            f" {privacy.epsilon:g}; leave out one of the two, or use more noise"
        )
