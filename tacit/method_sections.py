"""One section of a recipe per method: what a person may set of it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tacit.privacy.fixed_order import BatchOrder
from tacit.recipe_sections import Clip, CountFromZero, Section


class AnyMethod(Section):
    """What the library asks of every method before it is built."""

    correlated: ClassVar[bool] = False
    """Whether later noise depends on earlier draws, so that a run cannot go on with a new key."""

    @property
    def in_order(self) -> bool:
        """Whether an epoch is a whole number of batches in a fixed order."""
        return False


class ClippedRecipe(AnyMethod):
    """How per-record gradients are clipped."""

    clip: Clip = 1.0
    clipping: Literal["flat", "automatic"] = "flat"


class DpSgdRecipe(ClippedRecipe):
    """DP-SGD."""

    name: Literal["dpsgd"] = "dpsgd"


class DpFtrlRecipe(ClippedRecipe):
    """DP-FTRL: how noise is shared between steps."""

    correlated: ClassVar[bool] = True
    name: Literal["dpftrl"] = "dpftrl"
    mechanism: Literal["tree", "banded", "amplified"] = "tree"
    restart_every: CountFromZero = 0
    """Epochs after which a new tree starts; 0 keeps one tree."""
    completion: bool = False
    """Fill up a tree with empty leaves before a restart."""
    reduced: bool = True
    """Honaker's estimate: less variance from the same nodes."""
    order: BatchOrder = "same"
    bands: CountFromZero = 0
    """Bands of the factor, and groups of the amplified one; 0 chooses them."""

    @property
    def in_order(self) -> bool:
        return self.mechanism != "amplified"


class PlainRecipe(AnyMethod):
    """Plain SGD, without privacy."""

    name: Literal["plain"] = "plain"


MethodRecipe = Annotated[DpSgdRecipe | DpFtrlRecipe | PlainRecipe, Field(discriminator="name")]

METHODS: dict[str, type[AnyMethod]] = {
    "dpsgd": DpSgdRecipe,
    "dpftrl": DpFtrlRecipe,
    "plain": PlainRecipe,
}
