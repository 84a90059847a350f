"""What about a network cannot be private, and how to mend it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tacit.errors import ModelError

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_PROBE_RECORDS = 4


@dataclass(frozen=True)
class Finding:
    """One obstacle: where it is, why it matters, what to do about it."""

    where: str
    why: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}; {self.way_out}"


def findings(model: nn.Module) -> list[Finding]:
    """Everything in the module tree that per-record clipping does not cover."""
    return [finding for name, module in model.named_modules() for finding in _of(name, module)]


def check(model: nn.Module, example: Tensor | None = None) -> None:
    """Raise ModelError unless every record's gradient is its own.

    With an `example` batch of the right shape (its values do not matter), the model is also run:
    an output that depends on the other records of a batch, or a buffer that changes, is refused.
    """
    found = findings(model)
    if not found and example is not None:
        found = list(_probe(model, example))
    if found:
        listed = "\n  ".join(str(finding) for finding in found)
        raise ModelError(f"this model cannot be trained privately as it is:\n  {listed}")


def mended(model: nn.Module) -> nn.Module:
    """A copy of the model with every BatchNorm replaced by a GroupNorm of the same width, and
    running statistics of InstanceNorm switched off; other findings stay and are reported."""
    repaired = copy.deepcopy(model)
    for parent in list(repaired.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _BATCH_NORMS):
                setattr(parent, name, _group_norm(child.num_features, child.eps, child.affine))
            elif isinstance(child, _INSTANCE_NORMS):
                child.track_running_stats = False
                child.running_mean = child.running_var = None
    if isinstance(repaired, _BATCH_NORMS):
        return _group_norm(repaired.num_features, repaired.eps, repaired.affine)
    return repaired


def _group_norm(channels: int, eps: float, affine: bool) -> nn.GroupNorm:
    groups = next(g for g in range(min(32, channels), 0, -1) if channels % g == 0)
    return nn.GroupNorm(groups, channels, eps=eps, affine=affine)


def _of(name: str, module: nn.Module) -> Iterator[Finding]:
    where = f"{name or 'the model itself'} ({type(module).__name__})"
    if isinstance(module, _BATCH_NORMS):
        yield Finding(
            where,
            "it mixes the records of a batch, and its running buffers hold un-noised statistics",
            "use GroupNorm instead (model.mend = true, or tacit.models.mended(model))",
        )
    if isinstance(module, _INSTANCE_NORMS) and module.track_running_stats:
        yield Finding(
            where,
            "its running buffers hold un-noised statistics of private records",
            "set track_running_stats=False (model.mend = true does)",
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        if module.max_norm is not None:
            yield Finding(
                where,
                "max_norm rewrites rows that private records used, without noise",
                "construct it with max_norm=None",
            )
        if module.sparse:
            yield Finding(where, "sparse gradients show which rows were used", "set sparse=False")
    for key, parameter in module.named_parameters(recurse=False):
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            yield Finding(where, f"{key} has no shape yet", "run the model once on public data")
        elif parameter.requires_grad and parameter.dtype != torch.float32:
            yield Finding(
                where,
                f"{key} is {parameter.dtype}, and noise and bounds are made for 32-bit floats",
                "convert the model with model.float()",
            )


def _probe(model: nn.Module, example: Tensor) -> Iterator[Finding]:
    """Run a copy twice on batches that share their first record only."""
    probe = copy.deepcopy(model).train()
    for module in probe.modules():
        if isinstance(module, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
            module.eval()
    before = {name: buffer.clone() for name, buffer in probe.named_buffers()}
    first = example[:1].expand(_PROBE_RECORDS, *example.shape[1:]).clone()
    second = first.clone()
    if second.is_floating_point():
        second[1:] = second[1:] * -1.7 + 0.3
    else:
        second[1:] = second[1:].flip(-1)
        second[1:, ..., 0] = 0
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        one = probe(first)
        torch.manual_seed(0)
        two = probe(second)
    for name, buffer in probe.named_buffers():
        if not torch.equal(buffer, before[name]):
            yield Finding(
                f"buffer {name}",
                "a forward pass changes it, so it would carry un-noised values of private records",
                "remove it, or stop updating it in training",
            )
    if not isinstance(one, Tensor) or one.shape[:1] != (_PROBE_RECORDS,):
        yield Finding("the model", "its output has no row per record", "return one row per record")
    elif not torch.allclose(one[0], two[0], rtol=1e-4, atol=1e-5):
        yield Finding(
            "the model",
            "a record's output changes when other records of the batch change",
            "remove the layer that mixes records (normalise over channels or features instead)",
        )
