"""Norms of per-record convolution weight gradients from inner products between pixels."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.layers.contributions import exact, guarded, summed_products
from tacit.clipping.layers.conv_direct import output_rows, pixel_rows, windows
from tacit.clipping.layers.conv_geometry import Problem

_BYTES = 8
"""Of one inner product."""
_CACHE = 4 << 20


def norms_by_windows(problem: Problem) -> Tensor:
    """Inner products between kernel windows, times those between output gradients."""
    found = []
    groups = problem.geometry.groups
    size = _BYTES * groups * problem.pixels * (problem.pixels + problem.window)
    for _, part in problem.blocks(size, _CACHE):
        inputs, outputs = exact(windows(part)), exact(output_rows(part))
        gram = torch.bmm(inputs.mT, inputs).mul_(torch.bmm(outputs.mT, outputs))
        terms = inputs.shape[1] + outputs.shape[1]
        by_group = summed_products(gram, terms, problem.x.dtype)
        found.append(by_group.view(part.records, groups).sum(1))
    return torch.cat(found)


def norms_by_pixels(problem: Problem) -> Tensor:
    """As by windows, but every pair of pixels is met once for all taps that bring it together.

    Products between outputs are added up over the kernel's taps, along its height first and its
    width second. What is left is a quadratic form in the pixels of each input channel. With a
    stride no tap brings pixels of two phases together, so that every phase has a form of its own.
    """
    found = []
    size = 4 * _BYTES * pixels_of(problem) ** 2
    for _, part in problem.blocks(size, _CACHE):
        found.append(_norms_by_pixels(part))
    return torch.cat(found)


def pixels_of(problem: Problem) -> int:
    """Output pixels of one planar image, or input pixels of one phase, whichever are more."""
    sizes = zip(problem.x.shape[2:], problem.geometry.stride, strict=True)
    return max(math.prod(-(-n // step) for n, step in sizes), math.prod(problem.g.shape[2:]))


def _norms_by_pixels(problem: Problem) -> Tensor:
    inputs, outputs = exact(pixel_rows(problem.seen)), exact(pixel_rows(problem.g))
    products = torch.bmm(outputs, outputs.mT)
    sizes = products.diagonal(dim1=1, dim2=2).mul(_window_sizes(problem, inputs))
    pairs = products.view(-1, *problem.g.shape[2:] * 2)
    images: Tensor = inputs.unflatten(1, problem.x.shape[2:])
    down, right = problem.geometry.stride
    squares = torch.zeros_like(sizes[:, 0])
    for top in _phases(problem, 0):
        of_rows = _added_over_taps(problem, pairs, 0, top)
        for left in _phases(problem, 1):
            form = _added_over_taps(problem, of_rows, 1, left)
            phase = images[:, top::down, left::right].flatten(1, 2)
            weighted = torch.bmm(form.view(-1, *phase.shape[1:2] * 2), phase)
            squares += weighted.mul_(phase).sum((1, 2))
    terms = problem.window + outputs.shape[2] + outputs.shape[1]
    return guarded(squares, sizes.sqrt_().sum(1), terms, problem.x.dtype)


def _window_sizes(problem: Problem, inputs: Tensor) -> Tensor:
    """Squared norms of the windows, [records, output pixels]."""
    geometry = problem.geometry
    pixels = inputs.square().sum(2).view(-1, 1, *problem.x.shape[2:])
    ones = pixels.new_ones(1, 1, *problem.kernel[2:])
    options = (geometry.stride, geometry.padding, geometry.dilation)
    return F.conv2d(pixels, ones, None, *options).flatten(1)


def _phases(problem: Problem, dim: int) -> list[int]:
    """Remainders of positions by the stride, in one dimension, that some tap meets."""
    step, size = problem.geometry.stride[dim], problem.x.shape[2 + dim]
    return sorted({start % step for start in problem.starts(dim) if start % step < size})


def _added_over_taps(problem: Problem, pairs: Tensor, dim: int, phase: int) -> Tensor:
    """Replace output positions by input positions of one phase in one dimension of both pixels of
    a pair."""
    step, outputs = problem.geometry.stride[dim], pairs.shape[1 + dim]
    inputs = -(-(problem.x.shape[2 + dim] - phase) // step)
    shape = list(pairs.shape)
    shape[1 + dim] = shape[3 + dim] = inputs
    total = pairs.new_zeros(shape)
    for start in problem.starts(dim):
        if start % step != phase:
            continue
        moved = start // step
        first, last = max(0, -moved), min(outputs, inputs - moved)
        if first >= last:
            continue
        given, taken = [slice(None)] * 5, [slice(None)] * 5
        given[1 + dim] = given[3 + dim] = slice(first, last)
        taken[1 + dim] = taken[3 + dim] = slice(first + moved, last + moved)
        total[tuple(taken)] += pairs[tuple(given)]
    return total
