"""Norms of per-record convolution weight gradients from inner products between pixels."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.layers.contributions import exact, guarded, summed_products
from tacit.clipping.layers.conv_direct import CACHE, output_rows, pixel_rows, windows
from tacit.clipping.layers.conv_geometry import Problem

_BYTES = 8
"""Of one inner product."""


def norms_by_windows(problem: Problem) -> Tensor:
    """Inner products between kernel windows, times those between output gradients."""
    found = []
    groups = problem.geometry.groups
    size = _BYTES * groups * problem.pixels * (problem.pixels + problem.window)
    for _, part in problem.blocks(size, CACHE):
        inputs, outputs = exact(windows(part)), exact(output_rows(part))
        gram = torch.bmm(inputs.mT, inputs).mul_(torch.bmm(outputs.mT, outputs))
        terms = inputs.shape[1] + outputs.shape[1]
        by_group = summed_products(gram, terms, problem.x.dtype)
        found.append(by_group.view(part.records, groups).sum(1))
    return torch.cat(found)


def norms_by_pixels(problem: Problem) -> Tensor:
    """As by windows, but every pair of pixels is met once for all taps that bring it together.

    Products between outputs are added up over the kernel's taps, along its height first and its
    width second. What is left is a quadratic form in the pixels of each input channel.
    """
    found = []
    size = 4 * _BYTES * pixels_of(problem) ** 2
    for _, part in problem.blocks(size, CACHE):
        found.append(_norms_by_pixels(part))
    return torch.cat(found)


def pixels_of(problem: Problem) -> int:
    """Input or output pixels of one planar image, whichever are more."""
    return max(math.prod(t.shape[2:]) for t in (problem.x, problem.g))


def _norms_by_pixels(problem: Problem) -> Tensor:
    inputs, outputs = exact(pixel_rows(problem.x)), exact(pixel_rows(problem.g))
    products = torch.bmm(outputs, outputs.mT)
    sizes = products.diagonal(dim1=1, dim2=2).mul(_window_sizes(problem, inputs))
    pairs = products.view(-1, *problem.g.shape[2:] * 2)
    for dim in (0, 1):
        pairs = _added_over_taps(problem, pairs, dim)
    pixels = inputs.shape[1]
    weighted = torch.bmm(pairs.view(-1, pixels, pixels), inputs)
    squares = weighted.mul_(inputs).sum((1, 2))
    terms = problem.window + outputs.shape[2] + outputs.shape[1]
    return guarded(squares, sizes.sqrt_().sum(1), terms, problem.x.dtype)


def _window_sizes(problem: Problem, inputs: Tensor) -> Tensor:
    """Squared norms of the windows, [records, output pixels]."""
    geometry = problem.geometry
    pixels = inputs.square().sum(2).view(-1, 1, *problem.x.shape[2:])
    ones = pixels.new_ones(1, 1, *problem.kernel[2:])
    options = (geometry.stride, geometry.padding, geometry.dilation)
    return F.conv2d(pixels, ones, None, *options).flatten(1)


def _added_over_taps(problem: Problem, pairs: Tensor, dim: int) -> Tensor:
    """Replace output positions by input positions in one dimension of both pixels of a pair."""
    geometry, inputs, outputs = problem.geometry, problem.x.shape[2 + dim], pairs.shape[1 + dim]
    shape = list(pairs.shape)
    shape[1 + dim] = shape[3 + dim] = inputs
    total = pairs.new_zeros(shape)
    step = geometry.stride[dim]
    for tap in range(problem.kernel[2 + dim]):
        start = tap * geometry.dilation[dim] - geometry.padding[dim]
        first = max(0, -(start // step))
        last = min(outputs, (inputs - 1 - start) // step + 1)
        if first >= last:
            continue
        given, taken = [slice(None)] * 5, [slice(None)] * 5
        given[1 + dim] = given[3 + dim] = slice(first, last)
        ends = slice(start + first * step, start + (last - 1) * step + 1, step)
        taken[1 + dim] = taken[3 + dim] = ends
        total[tuple(taken)] += pairs[tuple(given)]
    return total
