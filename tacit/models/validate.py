"""What about a network cannot be private, and how to mend it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tacit.errors import ModelError
from tacit.fixed_state import same_bits
from tacit.models.sanitization import SanitizationLayer

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_RANDOM = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, SanitizationLayer)
_PROBE_RECORDS = 4


@dataclass(frozen=True)
class Finding:
    """One obstacle: where it is, why it matters, what to do about it."""

    where: str
    why: str
    way_out: str
    mixes: bool = False
    """Whether it is about records that see each other, which a clipped mini-set may hold."""

    def __str__(self) -> str:
        return f"{self.where}: {self.why}; {self.way_out}"


def findings(model: nn.Module) -> list[Finding]:
    """Everything in the module tree that per-record clipping does not cover."""
    return [finding for name, module in model.named_modules() for finding in _of(name, module)]


def check(model: nn.Module, like: Tensor | None = None, *, whole_sets: bool = False) -> None:
    """Raise ModelError unless every record's gradient is its own.

    With `like`, any tensor in the shape and type of a batch of records, a copy of the model is
    also run on made-up records: an output that depends on the other records of a batch, or a
    buffer that changes, is refused. With `whole_sets` the proof covers layers that mix the records
    of a set, as long as they keep nothing of them in buffers.
    """
    found = findings(model)
    if whole_sets:
        found = [f for f in found if not f.mixes]
    if not found and like is not None:
        found = [f for f in _probe(model, like) if not (whole_sets and f.mixes)]
    if found:
        listed = "\n  ".join(str(finding) for finding in found)
        raise ModelError(f"this model cannot be trained privately as it is:\n  {listed}")


def mended(model: nn.Module) -> nn.Module:
    """A copy of the model with every BatchNorm replaced by a GroupNorm of the same width, and
    running statistics of InstanceNorm switched off; other findings stay and are reported."""
    repaired = copy.deepcopy(model)
    for parent in list(repaired.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, BATCH_NORMS):
                setattr(parent, name, _instead_of(child))
            elif isinstance(child, _INSTANCE_NORMS):
                child.track_running_stats = False
                child.running_mean = child.running_var = None
    if isinstance(repaired, BATCH_NORMS):
        return _instead_of(repaired)
    return repaired


def _instead_of(norm: _BatchNorm) -> nn.GroupNorm:
    """A GroupNorm of the same width; in one group where a record may have one value per channel."""
    channels = norm.num_features
    most = 1 if isinstance(norm, nn.BatchNorm1d) else min(32, channels)
    groups = next(g for g in range(most, 0, -1) if channels % g == 0)
    return nn.GroupNorm(groups, channels, eps=norm.eps, affine=norm.affine)


def _of(name: str, module: nn.Module) -> Iterator[Finding]:
    where = f"{name or 'the model itself'} ({type(module).__name__})"
    if isinstance(module, BATCH_NORMS):
        yield Finding(
            where,
            "it mixes the records of a batch, and its running buffers hold un-noised statistics",
            "use GroupNorm instead (model.mend = true, or tacit.models.mended(model)), or method"
            " batch-clipping with mini-sets of several records",
            mixes=True,
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


def _probe_copy(model: nn.Module) -> nn.Module:
    """A copy in training mode whose dropout and noise are off."""
    probe = copy.deepcopy(model).train()
    for module in probe.modules():
        if isinstance(module, _RANDOM):
            module.eval()
    return probe


def _made_up(model: nn.Module, like: Tensor) -> Tensor:
    """Random records in the shape and type of `like`; token ids that every embedding knows."""
    shape = (_PROBE_RECORDS, *like.shape[1:])
    if like.is_floating_point():
        return torch.randn(shape, dtype=like.dtype)
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    ids = min((table.num_embeddings for table in tables), default=2)
    return torch.randint(0, ids, shape, dtype=like.dtype)


def _probe(model: nn.Module, like: Tensor) -> Iterator[Finding]:
    """Run a copy twice on made-up batches that share their first record only."""
    probe = _probe_copy(model)
    before = {name: buffer.clone() for name, buffer in probe.named_buffers()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        first, second = _made_up(probe, like), _made_up(probe, like)
    second[0] = first[0]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        one = probe(first)
        torch.manual_seed(0)
        two = probe(second)
    for name, buffer in probe.named_buffers():
        if name not in before or not same_bits(buffer, before[name]):
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
            mixes=True,
        )
