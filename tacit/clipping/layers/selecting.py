"""Rectified numbers and the largest of windows, by kernels that wait for memory less than torch.

Torch keeps the whole result of the one and eight bytes for each result of the other, to read them
on the way back. The kernels keep a bit, or a byte, and return the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack
from torch.autograd import Function, forward_ad

from tacit import native
from tacit.clipping.layers.conv_compiled import LANES
from tacit.clipping.layers.conv_geometry import spread
from tacit.native import Library
from tacit.native.selections import MOST_TAPS, which_dropped

_FEWEST = 1 << 16
"""Numbers below which a call of the kernels takes longer than torch."""


def relu(input: Tensor, inplace: bool = False) -> Any:
    """Replacement for `torch.relu` and `torch.nn.functional.relu`, not in place."""
    with torch._C.DisableTorchFunction():
        kernels = None if inplace else _kernels_for(input)
        last = input.dim() == 4 and input.is_contiguous(memory_format=torch.channels_last)
        if kernels is None or not (last or input.is_contiguous()):
            return NotImplemented
        form = torch.contiguous_format if input.is_contiguous() else torch.channels_last
        return _applied(_Rectified, input, kernels, form)


def max_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Replacement for `torch.nn.functional.max_pool2d`, without padding."""
    with torch._C.DisableTorchFunction():
        kernels = _kernels_for(input)
        if kernels is None or input.dim() != 4 or ceil_mode or return_indices:
            return NotImplemented
        try:
            window = spread(kernel_size, 2)
            step = window if stride is None else spread(stride, 2)
            around = (spread(padding, 2), spread(dilation, 2))
        except TypeError:  # given in a way that is not known here
            return NotImplemented
        if len(window) != 2 or len(step) != 2 or around != ((0, 0), (1, 1)) or min(step) < 1:
            return NotImplemented
        _, channels, height, width = input.shape
        high, wide = window
        fits = 0 < high <= height and 0 < wide <= width and high * wide <= MOST_TAPS
        last = input.is_contiguous(memory_format=torch.channels_last)
        if channels % LANES or not (fits and last) or input.is_contiguous():
            return NotImplemented
        return _applied(_Largest, input, kernels, window, step)


def _kernels_for(x: Tensor) -> Library | None:
    """The compiled kernels, where they know such numbers and are worth a call."""
    if type(x) is not Tensor or x.layout is not torch.strided or x.is_nested:
        return None
    if x.dtype != torch.float32 or not x.is_cpu or x.is_neg() or not x.requires_grad:
        return None
    transformed = peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    if x.numel() < _FEWEST or torch.is_autocast_enabled("cpu") or transformed:
        return None
    return native.active()


def _applied(function: type[Function], *arguments: object) -> Tensor:
    # No functorch transform is at work here, so its part of `Function.apply` is passed by.
    output: Tensor = super(Function, function).apply(*arguments)  # type: ignore[misc]
    return output


class _Rectified(Function):
    """What is kept is bits, and not for hooks on saved tensors, which may round what they keep."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernels: Library, form: torch.memory_format) -> Tensor:
        output, ctx.dropped = kernels.rectified(x)
        ctx.kernels, ctx.form = kernels, form
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        with torch._C.DisableTorchFunction():
            if _only_torch(g):
                below = which_dropped(ctx.dropped, g.shape, ctx.form)
                return g.masked_fill(below, 0), None, None
            slopes = g.resolve_neg()
            return ctx.kernels.rectified_back(slopes, ctx.dropped, ctx.form), None, None


class _Largest(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kernels: Library, window: tuple[int, int], step: tuple[int, int]
    ) -> Tensor:
        output, ctx.taps = kernels.largest(x, window, step)
        ctx.kernels, ctx.size, ctx.windows = kernels, x.shape, (window, step)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        with torch._C.DisableTorchFunction():
            if _only_torch(g):
                return _spread_out(g, ctx.taps, ctx.size, *ctx.windows), None, None, None
            slopes = g.resolve_neg()
            found = ctx.kernels.largest_back(slopes, ctx.taps, ctx.size, *ctx.windows)
            return found, None, None, None


def _only_torch(g: Tensor) -> bool:
    """Whether a backward pass is itself to be differentiated, or taken for several gradients."""
    several = peek_interpreter_stack() is not None or is_legacy_batchedtensor(g)
    return torch.is_grad_enabled() or several


def _spread_out(
    g: Tensor, taps: Tensor, size: torch.Size, window: tuple[int, int], step: tuple[int, int]
) -> Tensor:
    """`Library.largest_back` in torch."""
    (down, right), (rows, columns) = step, taps.shape[2:]
    from_top = taps.long() // window[1] + (down * torch.arange(rows))[:, None]
    from_left = taps.long() % window[1] + right * torch.arange(columns)
    places = (from_top * size[3] + from_left).flatten(2)
    nothing = torch.zeros(*size[:2], size[2] * size[3], dtype=g.dtype)
    return nothing.scatter_add(2, places, g.reshape(places.shape)).reshape(size)
