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
from tacit.losses import blank_record
from tacit.method_sections import ClippedRecipe, SelectiveRecipe
from tacit.privacy.ledger import Entry

CHECK_EVERY = 512
"""Steps between checks of a loss that has passed its first one."""


class Tier(str, Enum):
    """On what the independence of records rests."""

    CONSTRUCTION = "by construction"
    CHECKED = "checked"
    ASSUMED = "assumed"


class Unit(str, Enum):
    """What loss and gradient are computed for in a call of its own."""

    RECORD = "record"
    MINI_SET = "mini-set"


@dataclass(frozen=True)
class Independence:
    """The tier of a run, and why it is that one."""

    tier: Tier
    because: str
    by_layers: bool = False
    """Whether it follows from the model's layers, so that these must stay as they are."""
    unit: Unit | None = None
    """What is computed in a call of its own; None where a batch is computed at once."""

    def __str__(self) -> str:
        return f"{self.tier.value}: {self.because}"


_BY_LAYERS = (
    "the model is made of layers that are known to keep records apart, and the loss is"
    " tacit.cross_entropy"
)
_SETS_BY_LAYERS = (
    "the gradient of every mini-set is computed by itself, and the model is made of layers that are"
    " known to keep nothing of it"
)
_ONE_BY_ONE = (
    "the gradient of every {unit} is computed in a call of its own. It is assumed that model and"
    " loss keep nothing from one call to another. Before the first step, and at every"
    f" {CHECK_EVERY}th after it, gradients were computed again after calls on public rows, and did"
    " not change; memory that this did not show is not excluded"
)
_CHECKED = (
    "it is assumed that no record's loss or gradient depends on another record. Before the first"
    f" step, and at every {CHECK_EVERY}th after it, a real batch was run again with all records but"
    " one replaced by public rows, and that record's loss and gradient did not change; dependence"
    " that no such batch showed is not excluded"
)
_ITEMS = (
    ". A record is what the Dataset returns for its index, which must not depend on other records"
)
_OWN_LOOP = (
    ". The loop was the user's own: it is assumed that nothing it reads from a batch reaches the"
    " model or the loss, but through the batch they are given"
)
_ASSUMED = (
    "NOT CHECKED. The guarantee holds only if no record's loss or gradient depends on another"
    " record of its batch; the run was told to assume so (assume_independent)"
)


def independence_of(
    model: nn.Module,
    records: Records,
    recipe: Recipe,
    *,
    own_inputs: bool,
    own_loop: bool = False,
) -> Independence | None:
    """The best tier that holds; None for a method without a guarantee.

    Args:
        model: The network as it will be trained.
        records: Training records; only their shape is looked at.
        recipe: Method, engine and `privacy.assume_independent`.
        own_inputs: Whether loss, batches and passes are the library's own throughout.
        own_loop: Whether batches pass through a loop of the user's own.
    """
    across = recipe.method.layers_across_records(recipe.training.batch_size)
    if across == "free":
        return None
    items = _ITEMS if isinstance(records, DatasetRecords) else ""
    items += _OWN_LOOP if own_loop else ""
    if recipe.privacy.assume_independent:
        return Independence(Tier.ASSUMED, _ASSUMED + items)
    sets = across == "sealed"
    dims = blank_record(records)[0].dim()
    if own_inputs and obstacle(model, dims, whole_sets=sets) is None:
        because, unit = (_SETS_BY_LAYERS, Unit.MINI_SET) if sets else (_BY_LAYERS, None)
        return Independence(Tier.CONSTRUCTION, because + items, by_layers=True, unit=unit)
    sums_only = isinstance(recipe.method, ClippedRecipe) and not isinstance(
        recipe.method, SelectiveRecipe
    )
    if sets or (sums_only and recipe.run.engine != "fast"):
        alone = Unit.MINI_SET if sets else Unit.RECORD
        return Independence(Tier.CHECKED, _ONE_BY_ONE.format(unit=alone.value) + items, unit=alone)
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
