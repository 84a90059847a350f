"""Layers that no engine can train privately, refused before any data is touched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from tacit.errors import ModelError


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
