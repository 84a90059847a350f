"""Models that no engine can train privately: refused by their layers, or by what they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from tacit.clipping.contract import Batch
from tacit.clipping.layers.axis import Rows
from tacit.clipping.layers.world import World, equal_up_to_rounding
from tacit.errors import MixedRecordsError, ModelError


def suspects_among(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules that may mix or keep records; whether they do depends on how they are set."""
    kinds = (_BatchNorm, _InstanceNorm, nn.Embedding, nn.EmbeddingBag)
    return [m for m in modules if isinstance(m, kinds)]


def refuse_mixing(model: nn.Module, suspects: Sequence[nn.Module]) -> None:
    """Refuse those of a model's layers whose output for one record depends on others, or that keep
    something of the records they see, now or at a later step."""
    for module in suspects:
        fault = _fault(module)
        if fault:
            name = next(name for name, each in model.named_modules() if each is module)
            raise ModelError(f"{type(module).__name__} {name!r} {fault}")


def _fault(module: nn.Module) -> str:
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        if module.max_norm is not None:
            return (
                f"has max_norm={module.max_norm}: its forward pass rewrites the weights of the"
                " tokens it sees, without noise; use max_norm=None"
            )
    elif isinstance(module, _InstanceNorm):
        if module.track_running_stats and module.training:
            return (
                "keeps running statistics of the records it sees, without noise; use"
                " track_running_stats=False, or GroupNorm"
            )
    elif isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
        return (
            "mixes the records of a batch, so that no record's influence can be bounded; use"
            " GroupNorm instead, or freeze it with .eval()"
        )
    return ""


def refuse_dependence(
    loss: Callable[[Batch], Tensor], batch: Batch, rows: Rows, before: World, random: bool
) -> None:
    """Refuse a loss that changes with who else is in the batch, where gradients do not show it.

    Done once, on the first batch of several records: each half of it stays while the other
    half is replaced by copies of it, which leaves dropout as it was; then, unless the loss
    draws random numbers, the first half is taken alone.
    """

    def losses(rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        before.restore()
        found = loss(tuple(t[rows] for t in batch)).detach()
        return found, torch.get_rng_state()

    half = rows.records // 2 * rows.views
    numbers = torch.arange(rows.count, device=batch[0].device)
    together, drawn = losses(numbers)
    for kept in (slice(None, half), slice(half, None)):
        own = numbers[kept]
        others = own.repeat(1 + rows.count // len(own))[: rows.count]
        others[kept] = own
        found, drawn_now = losses(others)
        comparable = torch.equal(drawn, drawn_now)
        if comparable and not equal_up_to_rounding(found[kept], together[kept], of_units=True):
            raise MixedRecordsError(
                "the losses of some records change when others in the batch do, so that no"
                " record's influence can be bounded; remove what mixes records"
            )
    alone = together[:half] if random else losses(slice(None, half))[0]
    before.restore()
    if not equal_up_to_rounding(alone, together[:half], of_units=True):
        raise MixedRecordsError(
            "the losses of some records change when others leave the batch, so that no"
            " record's influence can be bounded; remove what mixes records"
        )
