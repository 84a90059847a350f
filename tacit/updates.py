"""From a recipe to what updates the weights: optimizer, pace, average, sparsifier."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tacit.config import Recipe
from tacit.errors import ArgumentError, ModelError
from tacit.optim import Pace, PrivateOptimizer, WeightAverage
from tacit.sparsify import Sparsifier


def private_optimizer(
    recipe: Recipe,
    model: nn.Module,
    steps: int,
    memory: dict[str, Tensor],
    given: torch.optim.Optimizer | None,
) -> PrivateOptimizer:
    """The recipe's optimizer, or the given one, for exactly the weights that are trained."""
    _check_optimizer(model, given)
    sparsifier = _sparsifier(recipe, steps, memory, own=given is None)
    if given is not None:
        return PrivateOptimizer(model, given)
    return PrivateOptimizer(model, _optimizer(recipe, model), _pace(recipe, steps), sparsifier)


def weight_average(recipe: Recipe, model: nn.Module) -> WeightAverage | None:
    """The average of the weights that the recipe asks for."""
    decay = recipe.training.average
    return WeightAverage(model, decay) if decay else None


def _check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """The optimizer must move exactly the weights that are trained."""
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    if not trained:
        raise ModelError("the model has no trainable parameters; unfreeze at least one")
    if optimizer is None:
        return
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if held & trained != trained or held - {id(p) for p in model.parameters()}:
        raise ArgumentError(
            "optimizer does not hold the parameters of this model; make it with model.parameters()"
        )


def _pace(recipe: Recipe, steps: int) -> Pace:
    training = recipe.training
    epoch = max(1, round(steps / training.epochs))
    rate, decay = training.learning_rate, training.rate_decay
    return Pace(rate, steps, training.schedule, training.warmup, decay, epoch)


def _optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    training = recipe.training
    trained = [p for p in model.parameters() if p.requires_grad]
    if training.optimizer == "adam":
        return torch.optim.Adam(
            trained,
            lr=training.learning_rate,
            weight_decay=training.weight_decay,
            fused=trained[0].device.type in ("cpu", "cuda"),
        )
    return torch.optim.SGD(
        trained,
        lr=training.learning_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )


def _sparsifier(
    recipe: Recipe, steps: int, memory: dict[str, Tensor], *, own: bool
) -> Sparsifier | None:
    training = recipe.training
    if not training.sparsify_every:
        return None
    if not own or recipe.method.name not in ("dpsgd", "batch-clipping"):
        raise ArgumentError(
            "sparsify_every needs independent noise of known scale in every step: use method dpsgd"
            " or batch-clipping with the recipe's own optimizer"
        )
    window = max(2, round(training.sparsify_every * steps / training.epochs))
    return Sparsifier(window, training.sparsify_below, memory)
