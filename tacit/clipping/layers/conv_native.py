"""Per-record convolution weight gradients by the compiled kernels, for planar images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tacit import native
from tacit.clipping.layers.contributions import guarded
from tacit.clipping.layers.conv_compiled import FEWEST_CHANNELS, LANES
from tacit.clipping.layers.conv_geometry import Problem
from tacit.clipping.layers.conv_written import WrittenOut, rooms
from tacit.native import Library
from tacit.native.structures import Windows

_MOST_SUMMED = 1 << 15
"""Weights of a kernel up to which a sum of its gradients is ours: several are added up at once."""
_FEWEST_SUMMED = 4
_FILLED = 0.75
"""What part of the processor's vectors outputs have to fill."""


def suits_kernels(problem: Problem) -> bool:
    """Whether the compiled kernels are there and know this kind of convolution."""
    planar = len(problem.kernel) == 4 and problem.geometry.groups == 1
    plain = problem.x.dtype == torch.float32 and problem.x.device.type == "cpu"
    plain = plain and not (problem.x.is_neg() or problem.g.is_neg())
    return planar and plain and native.available()


def by_kernels(problem: Problem) -> WrittenOut:
    """Gradients written out by the compiled kernels, which measure them on the way."""
    return _written_out(problem, _run)


def norms_by_kernels(problem: Problem) -> Tensor:
    """Only the squared norms: gradients do not leave the registers."""
    return _run(problem, None)


def suits_pixels(problem: Problem) -> bool:
    """Whether the kernels know how to measure such gradients by inner products between pixels."""
    geometry = problem.geometry
    return geometry.stride == geometry.dilation == (1, 1) and suits_kernels(problem)


def norms_by_compiled_pixels(problem: Problem) -> Tensor:
    """As `norms_by_pixels`, where steps and taps are of one pixel."""
    assert problem.images == 1
    kernels, arguments = _given(problem)
    squares, parts = kernels.pixel_norms(*arguments)
    terms = problem.window + problem.kernel[0] + problem.pixels
    return guarded(squares, parts, terms, problem.x.dtype)


def suits_winograd(problem: Problem) -> bool:
    """Whether these are gradients that Winograd's method is worth its transforms for.

    The shape of one image decides, so that neither other records nor another process change the
    bits of a gradient.
    """
    geometry, (outputs, channels, *kernel) = problem.geometry, problem.kernel
    square = kernel == [3, 3] and geometry.padding in ((0, 0), (1, 1), (2, 2))
    plain = geometry.stride == geometry.dilation == (1, 1)
    lanes = outputs % LANES == channels % LANES == 0
    enough = min(outputs, channels) >= FEWEST_CHANNELS
    return square and plain and lanes and enough and suits_kernels(problem)


def by_winograd(problem: Problem) -> WrittenOut:
    """As `by_kernels`, with 16 products for 36."""
    return _written_out(problem, _run_winograd)


def norms_by_winograd(problem: Problem) -> Tensor:
    """As `norms_by_kernels`, with 16 products for 36."""
    return _run_winograd(problem, None)


def summed_by_winograd(problem: Problem, factors: Tensor) -> Tensor:
    """`Problem.summed`, with 16 products for 36."""
    kernels = native.active()
    assert kernels is not None
    each = problem.each_image(factors)
    x, g = _channels_innermost(problem)
    return kernels.winograd_sum(x, g, problem.geometry.padding[0], each).permute(3, 2, 0, 1)


def _written_out(problem: Problem, run: Callable[[Problem, Tensor | None], Tensor]) -> WrittenOut:
    outputs, channels, high, wide = problem.kernel
    places = rooms(problem)
    squares = torch.cat([run(some, room) for some, room in places])
    pieces, shape = [room for _, room in places], (high, wide, channels, outputs)
    return WrittenOut(pieces, shape, (3, 2, 0, 1), squares)


def _run_winograd(problem: Problem, out: Tensor | None) -> Tensor:
    kernels = native.active()
    assert kernels is not None and problem.images == 1
    x, g = _channels_innermost(problem)
    return kernels.winograd_gradients(x, g, problem.geometry.padding[0], out)


def _channels_innermost(problem: Problem) -> tuple[Tensor, Tensor]:
    """Images and output gradients as [images, rows, columns, channels]."""
    return _last(problem.x).contiguous(), _last(problem.g).contiguous()


def sums_by_kernels(problem: Problem) -> bool:
    """Whether the kernels beat torch at the sum of such gradients, each times a factor.

    The shape of one image decides.
    """
    if not suits_kernels(problem):
        return False
    outputs, channels = problem.kernel[:2]
    filled = outputs / (-(-outputs // LANES) * LANES) >= _FILLED
    few = problem.weights <= _MOST_SUMMED and channels >= _FEWEST_SUMMED
    return few and filled and all(_last(t).is_contiguous() for t in (problem.x, problem.g))


def summed_by_kernels(problem: Problem, factors: Tensor) -> Tensor:
    """The weight gradient of all images, each record scaled by its factor."""
    kernels, arguments = _given(problem)
    each = problem.each_image(factors).contiguous()
    return kernels.kernel_gradient_sum(*arguments, each).permute(3, 2, 0, 1)


def _run(problem: Problem, out: Tensor | None) -> Tensor:
    assert problem.images == 1
    kernels, arguments = _given(problem)
    return kernels.kernel_gradients(*arguments, out)


def _given(problem: Problem) -> tuple[Library, tuple[Tensor, Tensor, Windows]]:
    """The kernels, and how they are told of a problem."""
    kernels, geometry = native.active(), problem.geometry
    assert kernels is not None
    (high, wide), (down, right) = problem.kernel[2:], geometry.stride
    (top, left), (tall, broad) = geometry.padding, geometry.dilation
    x, g = _channels_innermost(problem)
    return kernels, (x, g, Windows((high, wide), (down, right), (top, left), (tall, broad)))


def _last(images: Tensor) -> Tensor:
    """Images with their channels as the last dimension."""
    return images.permute(0, 2, 3, 1)
