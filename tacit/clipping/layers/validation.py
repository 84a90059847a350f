"""Layers that no engine can train privately, refused before any data is touched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from tacit.errors import ModelError


def normalising(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules that may mix records; whether they do depends on how they are set."""
    return [m for m in modules if isinstance(m, (_BatchNorm, _InstanceNorm))]


def refuse_mixing(model: nn.Module, norms: Sequence[nn.Module]) -> None:
    """Refuse those of a model's normalising layers whose output for one record depends on others,
    now or at a later step."""
    if not norms:
        return
    names = {id(module): name for name, module in model.named_modules()}
    for module in norms:
        kind, name = type(module).__name__, names[id(module)]
        if isinstance(module, _InstanceNorm):
            if module.track_running_stats and module.training:
                raise ModelError(
                    f"{kind} {name!r} keeps running statistics of the records it sees, without"
                    " noise; use track_running_stats=False, or GroupNorm"
                )
        elif module.training or module.running_mean is None:
            raise ModelError(
                f"{kind} {name!r} mixes the records of a batch, so that no record's influence can"
                " be bounded; use GroupNorm instead, or freeze it with .eval()"
            )
