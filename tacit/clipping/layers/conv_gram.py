"""Norms of per-record convolution weight gradients from inner products between pixels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.layers.contributions import exact, summed_products
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
    """As by windows, but the inner products between windows are sums of those between pixels.

    The sum over a kernel's taps is taken along its height first and its width second.
    """
    found = []
    pixels = padded_pixels(problem)
    for _, part in problem.blocks(2 * _BYTES * pixels**2, CACHE):
        found.append(_norms_by_pixels(part))
    return torch.cat(found)


def padded_pixels(problem: Problem) -> int:
    """Pixels of one padded planar image."""
    top, left = problem.geometry.padding
    return int((problem.x.shape[2] + 2 * top) * (problem.x.shape[3] + 2 * left))


def _norms_by_pixels(problem: Problem) -> Tensor:
    geometry = problem.geometry
    padded = F.pad(problem.x, geometry.pads)
    height, width = padded.shape[2:]
    inputs, outputs = exact(pixel_rows(padded)), exact(pixel_rows(problem.g))
    gram = torch.bmm(inputs, inputs.mT).view(-1, height, width, height, width)
    for dim in (0, 1):
        gram = _summed_over_taps(
            gram,
            dim,
            problem.kernel[2 + dim],
            problem.g.shape[2 + dim],
            geometry.stride[dim],
            geometry.dilation[dim],
        )
    products = torch.bmm(outputs, outputs.mT)
    products.mul_(gram.view(products.shape))
    return summed_products(products, problem.window + outputs.shape[2], problem.x.dtype)


def _summed_over_taps(
    gram: Tensor, dim: int, taps: int, count: int, stride: int, dilation: int
) -> Tensor:
    """Replace input positions by output positions in one dimension of both pixels of a pair."""
    total: Tensor | None = None
    reach = stride * (count - 1) + 1
    for tap in range(taps):
        start = tap * dilation
        chosen = [slice(None)] * 5
        chosen[1 + dim] = chosen[3 + dim] = slice(start, start + reach, stride)
        part = gram[tuple(chosen)]
        total = (
            part.clone(memory_format=torch.contiguous_format) if total is None else total.add_(part)
        )
    assert total is not None
    return total
