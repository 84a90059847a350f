"""Networks whose records are independent by construction: known layers, composed in known ways.

Every known layer maps a tensor with one record per index of its first dimension to another such
tensor, and row i of its output is a function of row i of its input, of the weights, and of random
numbers drawn for position i. Compositions of such maps are such maps (docs/proofs/independence.md).
Whether a layer is such a map can depend on the number of dimensions of its input: a Conv2d takes
the first of three dimensions for channels, not for records. So the number of dimensions is followed
through the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.nn.modules import module as global_state

from tacit.data.patches import PatchFeatures
from tacit.models import networks, normalised_networks, sanitized_networks
from tacit.models.sanitization import SanitizationLayer

Rule = Callable[[Any, int], int | None]
"""Maps a module and the dimensions of its input, the records' included, to the dimensions of its
output; None where the module would not keep records apart."""
_Layers = dict[type[nn.Module], tuple[Callable[..., Any], Rule | None]]
"""Classes with the `forward` they had when this was imported, and their rules."""


def obstacle(model: nn.Module, dims: int, *, whole_sets: bool = False) -> str | None:
    """Why records are not independent by construction in `model`; None where they are.

    Args:
        model: The network, in training mode or not.
        dims: Dimensions of a batch of features, of which the first numbers the records.
        whole_sets: Whether mini-sets are computed by themselves, so that BatchNorm may look at all
            records of one; its buffers are another matter.

    >>> obstacle(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), 3) is None
    True
    >>> obstacle(nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)), 3)
    "layer '0' (Flatten) does not keep records apart on 3 dimensions"
    """
    if any(getattr(global_state, name) for name in _GLOBAL_HOOKS):
        return "a hook is registered for all modules"
    try:
        left = _traverse(model, "", dims, {**_KNOWN, **_OF_SETS} if whole_sets else _KNOWN)
    except _Unknown as unknown:
        return str(unknown)
    return None if left == 2 else f"the output has {left} dimensions instead of 2"


class _Unknown(Exception):
    """What is not known to keep records apart."""


def _traverse(module: nn.Module, name: str, dims: int, layers: _Layers) -> int:
    """Dimensions of the module's output."""
    kind = type(module)
    known = layers.get(kind)
    if known is None:
        raise _Unknown(
            f"{_named(module, name)} is not one of the layers that are known to keep records apart"
        )
    forward, rule = known
    own = vars(module)
    if kind.forward is not forward or "forward" in own:
        raise _Unknown(f"the forward method of {_named(module, name)} was replaced")
    for hooks in _HOOKS:
        if own[hooks]:
            raise _Unknown(f"{_named(module, name)} has a hook")
    for parameter in own["_parameters"].values():
        if parameter is None:
            continue
        if type(parameter) is not nn.Parameter:
            raise _Unknown(f"{_named(module, name)} has a parameter of a type of its own")
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise _Unknown(f"{_named(module, name)} has a parameter with a hook")
    ends = dims
    children = own["_modules"]
    if children:
        for parts in _BRANCHES.get(kind, (children,)):
            ends = dims
            for part in parts:
                inner = f"{name}.{part}" if name else part
                ends = _traverse(children[part], inner, ends, layers)
    if rule is None:
        return ends
    after = rule(module, dims)
    if after is None:
        raise _Unknown(f"{_named(module, name)} does not keep records apart on {dims} dimensions")
    return after


def _named(module: nn.Module, name: str) -> str:
    kind = type(module).__name__
    return f"layer {name!r} ({kind})" if name else f"the model ({kind})"


def _same(_: nn.Module, dims: int) -> int | None:
    return dims


def _exactly(wanted: int) -> Rule:
    return lambda _, dims: dims if dims == wanted else None


def _at_least(least: int) -> Rule:
    return lambda _, dims: dims if dims >= least else None


def _along(module: nn.Softmax | nn.LogSoftmax | nn.GLU, dims: int) -> int | None:
    """A layer that looks along one dimension, which must not be the records'."""
    along = module.dim
    return dims if along is not None and along % dims else None


def _flatten(module: nn.Flatten, dims: int) -> int | None:
    start, end = module.start_dim % dims, module.end_dim % dims
    return dims - max(0, end - start) if start > 0 else None


def _unflatten(module: nn.Unflatten, dims: int) -> int | None:
    if not isinstance(module.dim, int) or module.dim % dims == 0:
        return None
    return dims + len(module.unflattened_size) - 1


def _layer_norm(module: nn.LayerNorm, dims: int) -> int | None:
    return dims if len(module.normalized_shape) < dims else None


def _lookup(module: nn.Embedding, dims: int) -> int | None:
    return dims + 1 if module.max_norm is None else None


def _bag(module: nn.EmbeddingBag, dims: int) -> int | None:
    return 2 if dims == 2 and module.max_norm is None else None


def _instance_norm(wanted: int) -> Rule:
    return lambda module, dims: dims if dims == wanted and not module.track_running_stats else None


def _recurrent(module: nn.LSTM | nn.GRU | nn.RNN, dims: int) -> int | None:
    return dims if dims == 3 and module.batch_first else None


_ELEMENTWISE: Iterable[type[nn.Module]] = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU),
    *(nn.Mish, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Sigmoid, nn.LogSigmoid, nn.Tanh),
    *(nn.Softplus, nn.Softsign, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink, nn.Threshold),
    *(nn.Dropout, nn.AlphaDropout, networks.TemperedSigmoid),
)
_SPATIAL: tuple[tuple[type[nn.Module], ...], ...] = (
    (
        *(nn.Conv1d, nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d),
        *(nn.ConvTranspose1d, nn.ZeroPad1d, nn.ConstantPad1d, nn.ReflectionPad1d),
        *(nn.ReplicationPad1d, nn.CircularPad1d, nn.Dropout1d),
    ),
    (
        *(nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
        *(nn.ConvTranspose2d, nn.ZeroPad2d, nn.ConstantPad2d, nn.ReflectionPad2d),
        *(nn.ReplicationPad2d, nn.CircularPad2d, nn.Dropout2d, nn.PixelShuffle, nn.Softmax2d),
    ),
    (
        *(nn.Conv3d, nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d),
        *(nn.ConvTranspose3d, nn.ZeroPad3d, nn.ConstantPad3d, nn.ReflectionPad3d),
        *(nn.ReplicationPad3d, nn.CircularPad3d, nn.Dropout3d),
    ),
)
_RULES: dict[type[nn.Module], Rule | None] = {
    **dict.fromkeys(_ELEMENTWISE, _same),
    **{kind: _exactly(3 + n) for n, kinds in enumerate(_SPATIAL) for kind in kinds},
    nn.Sequential: None,
    nn.Linear: _at_least(2),
    nn.PReLU: _at_least(2),
    nn.GroupNorm: _at_least(2),
    nn.LayerNorm: _layer_norm,
    nn.InstanceNorm1d: _instance_norm(3),
    nn.InstanceNorm2d: _instance_norm(4),
    nn.InstanceNorm3d: _instance_norm(5),
    nn.Softmax: _along,
    nn.LogSoftmax: _along,
    nn.GLU: _along,
    nn.Flatten: _flatten,
    nn.Unflatten: _unflatten,
    nn.Upsample: _at_least(3),
    nn.Embedding: _lookup,
    nn.EmbeddingBag: _bag,
    nn.LSTM: _recurrent,
    nn.GRU: _recurrent,
    nn.RNN: _recurrent,
    networks.WordWeights: _exactly(2),
    networks.Recurrent: _exactly(2),
    normalised_networks.ResidualBlock: _exactly(4),
    sanitized_networks.ResidualBlock: _exactly(4),
    SanitizationLayer: _exactly(2),
    PatchFeatures: lambda _, dims: 2 if dims == 4 else None,
}
_KNOWN: _Layers = {kind: (kind.forward, rule) for kind, rule in _RULES.items()}
_OF_SETS: _Layers = {
    kind: (kind.forward, _at_least(2)) for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
}
_BRANCHES: dict[type[nn.Module], tuple[tuple[str, ...], ...]] = {
    networks.WordWeights: (("embedding",),),
    networks.Recurrent: (("embedding", "lstm"),),
    normalised_networks.ResidualBlock: (
        ("shortcut",),
        ("conv1", "norm1", "relu", "conv2", "norm2"),
    ),
    sanitized_networks.ResidualBlock: (
        ("shortcut",),
        ("first", "first_norm", "second", "second_norm"),
    ),
}
"""The library's own modules: which of their parts are applied one after the other, branch by
branch, all to the module's input."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = (
    *("_global_forward_hooks", "_global_forward_pre_hooks"),
    *("_global_backward_hooks", "_global_backward_pre_hooks"),
)
