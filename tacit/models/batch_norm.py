"""BatchNorm under batch clipping: nothing of its statistics leaves a step un-noised.

While training, layers normalise by the statistics of the mini-set at hand, which batch clipping
covers, and keep no running buffers. Before release the buffers are filled from public records, or
from clipped moments with noise that were charged for, or there are none and the released model
normalises by whatever batch it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tacit.clipping.contract import Batch
from tacit.models.validate import BATCH_NORMS

Features = Iterable[Tensor]


def layers(model: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers by name, in the order in which they are registered."""
    return {name: m for name, m in model.named_modules() if isinstance(m, BATCH_NORMS)}


def seal(model: nn.Module) -> None:
    """Take the running buffers away: layers normalise by the batch at hand, always."""
    for layer in layers(model).values():
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None


def fill(layer: _BatchNorm, mean: Tensor, square: Tensor) -> None:
    """Give a layer buffers from a mean and a mean square per channel; a variance is positive."""
    variance = (square - mean.square()).clamp_min(1e-5)
    layer.running_mean, layer.running_var = mean.clone(), variance
    layer.num_batches_tracked = torch.tensor(0)
    layer.track_running_stats = True


def load(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """The released weights in the model, with the buffers that were released beside them."""
    for name, layer in layers(model).items():
        mean = weights.get(f"{name}.running_mean" if name else "running_mean")
        if mean is not None and layer.running_mean is None:
            fill(layer, mean, mean)
    model.load_state_dict(weights)


def fill_from_public(model: nn.Module, batches: Callable[[], Iterable[Batch]]) -> None:
    """Fill all buffers from public records, one layer after the other in the order of use.

    Later layers see inputs that earlier ones normalised by their filled buffers, as at inference.
    """
    model.eval()
    with torch.no_grad():
        for layer in in_order_of_use(model, next(iter(batches()))).values():
            moments = [m for batch in batches() for m in record_moments(model, layer, batch)]
            mean = torch.stack(moments).mean(0)
            fill(layer, *mean.chunk(2))


def in_order_of_use(model: nn.Module, batch: Batch) -> dict[str, _BatchNorm]:
    """The BatchNorm layers in the order in which a forward pass reaches them."""
    used: dict[str, _BatchNorm] = {}

    def noticed(name: str, layer: _BatchNorm) -> None:
        used.setdefault(name, layer)

    handles = [
        layer.register_forward_pre_hook(lambda m, _, name=name: noticed(name, m))
        for name, layer in layers(model).items()
    ]
    try:
        with torch.no_grad():
            model(batch[0])
    finally:
        for handle in handles:
            handle.remove()
    return used


def record_moments(model: nn.Module, layer: nn.Module, batch: Batch) -> Tensor:
    """For each record the mean and the mean square of every channel of a layer's input.

    In evaluation mode with all earlier layers filled, a record's row depends on that record alone.
    """
    with _input_of(layer) as seen, suppress(_Reached):
        model(batch[0])
    x = seen[0].detach().flatten(2) if seen[0].dim() > 2 else seen[0].detach().unsqueeze(2)
    return torch.cat([x.mean(2), x.square().mean(2)], 1)


class _Reached(Exception):
    """The pass has come to the layer; what follows is not needed."""


@contextmanager
def _input_of(layer: nn.Module) -> Iterator[list[Tensor]]:
    """The layer's first input of a pass, which ends there."""
    seen: list[Tensor] = []

    def reached(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])
        raise _Reached

    handle = layer.register_forward_pre_hook(reached)
    try:
        yield seen
    finally:
        handle.remove()
