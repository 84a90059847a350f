"""Which of three tiers a run's independence of records rests on.

A clipped sum is bounded in one record only if no record's gradient depends on another record. That
holds by construction, or is checked on real batches, or is assumed because the user says so. The
tier is in the certificate. Proof: docs/proofs/independence.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from torch import nn

from tacit.config import Recipe
from tacit.data.batches import DatasetRecords, Records
from tacit.errors import RunError
from tacit.independence.construction import obstacle
from tacit.losses import one_record
from tacit.method_sections import ClippedRecipe, SelectiveRecipe
from tacit.privacy.ledger import Entry

CHECK_EVERY = 512
"""Steps between checks of a loss that has passed its first one."""


class Tier(str, Enum):
    """On what the independence of records rests."""

    CONSTRUCTION = "by construction"
    CHECKED = "checked"
    ASSUMED = "assumed"


@dataclass(frozen=True)
class Independence:
    """The tier of a run, and why it is that one."""

    tier: Tier
    because: str
    by_layers: bool = False
    """Whether it follows from the model's layers, so that these must stay as they are."""

    def __str__(self) -> str:
        return f"{self.tier.value}: {self.because}"


_BY_LAYERS = (
    "the model is made of layers that are known to keep records apart, and the loss is"
    " tacit.cross_entropy"
)
_ONE_BY_ONE = "loss and gradient of every {unit} are computed by themselves, without other records"
_CHECKED = (
    "it is assumed that no record's loss or gradient depends on another record. Before the first"
    f" step, and at every {CHECK_EVERY}th after it, a real batch was run again with all records but"
    " one replaced by public rows, and that record's loss and gradient did not change; dependence"
    " that no such batch showed is not excluded"
)
_ITEMS = (
    ". A record is what the Dataset returns for its index, which must not depend on other records"
)
_ASSUMED = (
    "NOT CHECKED. The guarantee holds only if no record's loss or gradient depends on another"
    " record of its batch; the run was told to assume so (assume_independent)"
)


def independence_of(
    model: nn.Module, records: Records, recipe: Recipe, *, own_inputs: bool
) -> Independence | None:
    """The best tier that holds; None for a method without a guarantee.

    Args:
        model: The network as it will be trained.
        records: Training records; only their shape is looked at.
        recipe: Method, engine and `privacy.assume_independent`.
        own_inputs: Whether loss and batches are the library's own throughout.
    """
    across = recipe.method.layers_across_records(recipe.training.batch_size)
    if across == "free":
        return None
    items = _ITEMS if isinstance(records, DatasetRecords) else ""
    if recipe.privacy.assume_independent:
        return Independence(Tier.ASSUMED, _ASSUMED + items)
    if across == "sealed":
        return Independence(Tier.CONSTRUCTION, _ONE_BY_ONE.format(unit="mini-set") + items)
    sums_only = isinstance(recipe.method, ClippedRecipe) and not isinstance(
        recipe.method, SelectiveRecipe
    )
    if sums_only and recipe.run.engine != "fast":
        return Independence(Tier.CONSTRUCTION, _ONE_BY_ONE.format(unit="record") + items)
    if own_inputs and obstacle(model, one_record(records)[0].dim()) is None:
        return Independence(Tier.CONSTRUCTION, _BY_LAYERS + items, by_layers=True)
    return Independence(Tier.CHECKED, _CHECKED + items)


def weakest_of(several: Iterable[Independence | None]) -> Independence | None:
    """What holds for all of several runs; None where one of them has no guarantee."""
    order = list(Tier)
    found = list(several)
    known = [each for each in found if each is not None]
    if not known or len(known) < len(found):
        return None
    return max(known, key=lambda each: order.index(each.tier))


def check_resumed(run: Path, entries: Sequence[Entry], now: Independence | None) -> None:
    """Refuse to go on where records were seen to mix, or on another tier than was promised."""
    if any(entry.kind == "mixed" for entry in entries):
        raise RunError(
            f"{run}: records were seen to influence each other after steps had been taken, so the"
            " run cannot be certified; start a new one with a model that keeps them apart"
        )
    promised = entries[0].body.get("independence")
    if promised and now and not promised.startswith(f"{now.tier.value}:"):
        raise RunError(
            f"{run}: records were independent {promised.partition(':')[0]!r} when the run was"
            f" started and would now be {now.tier.value!r}; resume with the same model and loss"
        )
