"""From a recipe to its method; each method's module binds its own sampler, noise and event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tacit.config import Recipe
from tacit.method_sections import ClippedRecipe, DpFtrlRecipe, DpSgdRecipe, PlainRecipe
from tacit.methods import dpftrl, dpsgd, plain
from tacit.methods.base import Method
from tacit.methods.parts import Parts

_BUILDERS: dict[type, Callable[[Parts, Any], Method]] = {
    DpSgdRecipe: dpsgd.from_recipe,
    DpFtrlRecipe: dpftrl.from_recipe,
    PlainRecipe: plain.from_recipe,
}


def build(parts: Parts) -> Method:
    """The method that the recipe names."""
    chosen = parts.recipe.method
    return _BUILDERS[type(chosen)](parts, chosen)


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
