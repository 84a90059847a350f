"""Per-record convolution weight gradients by the compiled kernels, for planar images."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit import native
from tacit.clipping.layers.contributions import guarded
from tacit.clipping.layers.conv_compiled import FEWEST_CHANNELS, LANES
from tacit.clipping.layers.conv_direct import WrittenOut
from tacit.clipping.layers.conv_geometry import Problem


def suits_kernels(problem: Problem) -> bool:
    """Whether the compiled kernels are there and know this kind of convolution."""
    planar = len(problem.kernel) == 4 and problem.geometry.groups == 1
    plain = problem.x.dtype == torch.float32 and problem.x.device.type == "cpu"
    return planar and plain and native.available()


def by_kernels(problem: Problem) -> WrittenOut:
    """Gradients written out by the compiled kernels, which measure them on the way."""
    outputs, channels, high, wide = problem.kernel
    out = problem.x.new_empty(1, problem.records, problem.weights)
    squares = _run(problem, out)
    return WrittenOut(out, (high, wide, channels, outputs), (3, 2, 0, 1), squares)


def norms_by_kernels(problem: Problem) -> Tensor:
    """Only the squared norms: gradients do not leave the registers."""
    return _run(problem, None)


def suits_pixels(problem: Problem) -> bool:
    """Whether the kernels know how to measure such gradients by inner products between pixels."""
    geometry = problem.geometry
    return geometry.stride == geometry.dilation == (1, 1) and suits_kernels(problem)


def norms_by_compiled_pixels(problem: Problem) -> Tensor:
    """As `norms_by_pixels`, where steps and taps are of one pixel."""
    kernels = native.active()
    assert kernels is not None and problem.images == 1
    (high, wide), (top, left) = problem.kernel[2:], problem.geometry.padding
    x, g = _channels_innermost(problem)
    squares, parts = kernels.pixel_norms(x, g, (high, wide), (top, left))
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
    outputs, channels, high, wide = problem.kernel
    out = problem.x.new_empty(1, problem.records, problem.weights)
    squares = _run_winograd(problem, out)
    return WrittenOut(out, (high, wide, channels, outputs), (3, 2, 0, 1), squares)


def norms_by_winograd(problem: Problem) -> Tensor:
    """As `norms_by_kernels`, with 16 products for 36."""
    return _run_winograd(problem, None)


def summed_by_winograd(problem: Problem, factors: Tensor) -> Tensor:
    """`Problem.summed`, with 16 products for 36."""
    kernels = native.active()
    assert kernels is not None
    each = factors.to(torch.float32).repeat_interleave(problem.images)
    x, g = _channels_innermost(problem)
    return kernels.winograd_sum(x, g, problem.geometry.padding[0], each).permute(3, 2, 0, 1)


def _run_winograd(problem: Problem, out: Tensor | None) -> Tensor:
    kernels = native.active()
    assert kernels is not None and problem.images == 1
    x, g = _channels_innermost(problem)
    return kernels.winograd_gradients(x, g, problem.geometry.padding[0], out)


def _channels_innermost(problem: Problem) -> tuple[Tensor, Tensor]:
    """Images and output gradients as [images, rows, columns, channels]."""
    x, g = (t.permute(0, 2, 3, 1).contiguous() for t in (problem.x, problem.g))
    return x, g


def _run(problem: Problem, out: Tensor | None) -> Tensor:
    kernels = native.active()
    assert kernels is not None and problem.images == 1
    geometry = problem.geometry
    x, g = _channels_innermost(problem)
    high, wide = problem.kernel[2:]
    (down, right), (top, left) = geometry.stride, geometry.padding
    tall, broad = geometry.dilation
    return kernels.kernel_gradients(
        x, g, (high, wide), (down, right), (top, left), (tall, broad), out
    )
