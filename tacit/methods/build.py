"""From a recipe to its method; each method's module binds its own sampler, noise and event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tacit.clipping.numerics import Numerics
from tacit.config import Recipe
from tacit.errors import ArgumentError
from tacit.method_sections import (
    BatchClippingRecipe,
    ClippedRecipe,
    DpFtrlRecipe,
    DpsgdBrRecipe,
    DpSgdRecipe,
    DpsurRecipe,
    PlainRecipe,
    SanitizationRecipe,
)
from tacit.methods import batch_clipping, dpftrl, dpsgd, plain, sanitization, selective_recipe
from tacit.methods.base import Method
from tacit.methods.parts import Parts

_BUILDERS: dict[type, Callable[[Parts, Any], Method]] = {
    DpSgdRecipe: dpsgd.from_recipe,
    DpFtrlRecipe: dpftrl.from_recipe,
    BatchClippingRecipe: batch_clipping.from_recipe,
    SanitizationRecipe: sanitization.from_recipe,
    DpsurRecipe: selective_recipe.from_recipe,
    DpsgdBrRecipe: selective_recipe.from_recipe,
    PlainRecipe: plain.from_recipe,
}


_RULES = {
    "flat": "clipped to norm {}",
    "automatic": "normalised to norm {}",
    "layerwise": "clipped group by group, each to a norm of its own",
    "adaptive-layerwise": "clipped group by group to norms estimated on public records, the largest"
    " being {}",
    "adaptive-norms": "clipped group by group to norms estimated on public records",
    "multiplied": "multiplied group by group, clipped as a whole to norm {}, and divided again"
    " after the noise",
}


def build(parts: Parts) -> Method:
    """The method that the recipe names."""
    chosen = parts.recipe.method
    if parts.set_pass is not None and not _clips_sets(parts.recipe):
        raise ArgumentError(
            f"set_pass is a function, but method {chosen.name!r} as it is set clips no mini-sets of"
            " several records: use method 'batch-clipping' with fewer mini_sets than batch_size"
        )
    method = _BUILDERS[type(chosen)](parts, chosen)
    if parts.recipe.privacy.numerics == "proven":
        _refuse_idealised(method)
    return method


def numerics_of(method: Method) -> dict[str, Any]:
    """What the certificate says about the sums of a method."""
    found: dict[str, Any] | None = method.promise.details.get("numerics")
    reason = f"method {method.promise.method!r} has no proof of its sums in floating point"
    return found or Numerics("idealised", reason).as_json()


def _refuse_idealised(method: Method) -> None:
    found = numerics_of(method)
    if found["sums"] != "proven":
        raise ArgumentError(
            f"numerics is 'proven', but the sums of this run have no proof in floating point:"
            f" {found['reason']}. Change that, or set privacy.numerics to 'best', and the"
            " certificate will say that sums are idealised"
        )


def _clips_sets(recipe: Recipe) -> bool:
    chosen = recipe.method
    return isinstance(chosen, BatchClippingRecipe) and (
        chosen.mini_sets < recipe.training.batch_size
    )


def clipping_sentence(recipe: Recipe) -> str:
    """How gradients are clipped, for the certificate."""
    method = recipe.method
    if isinstance(method, SanitizationRecipe):
        return _activations_sentence(method)
    if not isinstance(method, ClippedRecipe):
        return "none"
    decay = f", which falls by {method.clip_decay:g} every epoch" if method.clip_decay < 1 else ""
    rule = _RULES[method.clipping].format(f"{method.clip:g}{decay}")
    noise = "normal noise, correlated over the steps," if method.correlated else "normal noise"
    return (
        f"{method.clipped_unit}'s gradient is {rule}; their sum gets {noise} and is divided by"
        f" the {method.divided_by}"
    )


def _activations_sentence(method: SanitizationRecipe) -> str:
    whole = f"its norm to {method.clip:g}"
    bounds = {
        "ball": whole,
        "positive": f"its elements to [0, {method.clip:g}]",
        "symmetric": f"its elements to [−{method.clip:g}, {method.clip:g}]",
    }
    moving = ", a threshold that follows the weights below" if method.follow else ""
    sentence = f"each record's vector of activations is clipped, {bounds[method.values_in]}{moving}"
    if method.guarantee == "joint":
        sentence += f"; each record's gradient is clipped to norm {method.gradient_clip:g}"
    return sentence
