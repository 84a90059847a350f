"""Per-record convolution weight gradients by the compiled kernels, for planar images."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit import native
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


def _run(problem: Problem, out: Tensor | None) -> Tensor:
    kernels = native.active()
    assert kernels is not None and problem.images == 1
    geometry = problem.geometry
    x, g = (t.permute(0, 2, 3, 1).contiguous() for t in (problem.x, problem.g))
    high, wide = problem.kernel[2:]
    (down, right), (top, left) = geometry.stride, geometry.padding
    tall, broad = geometry.dilation
    return kernels.kernel_gradients(
        x, g, (high, wide), (down, right), (top, left), (tall, broad), out
    )
