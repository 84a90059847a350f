"""Per-record convolution weight gradients, written out."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.layers.conv_geometry import Problem


def windows(problem: Problem) -> Tensor:
    """All kernel windows as [records · groups, window, pixels], copied out of the padded images."""
    x, geometry = problem.x, problem.geometry
    padded = F.pad(x, geometry.pads) if any(geometry.padding) else x
    dims = len(geometry.stride)
    per_record, groups = problem.images, geometry.groups
    image, channel, *space = padded.stride()
    kernel, out = problem.kernel[2:], problem.g.shape[2:]
    channels = x.shape[1] // groups
    sizes = (problem.records, groups, channels, *kernel, per_record, *out)
    taps = [space[d] * geometry.dilation[d] for d in range(dims)]
    steps = [space[d] * geometry.stride[d] for d in range(dims)]
    strides = (per_record * image, channels * channel, channel, *taps, image, *steps)
    view = padded.as_strided(sizes, strides, padded.storage_offset())
    return view.reshape(problem.records * groups, problem.window, problem.pixels)


def output_rows(problem: Problem) -> Tensor:
    """Output gradients as [records · groups, channels per group, pixels]."""
    groups = problem.geometry.groups
    split = problem.g.unflatten(0, (problem.records, problem.images))
    split = split.unflatten(2, (groups, -1)).movedim(1, 3)
    rows: Tensor = split.reshape(problem.records * groups, -1, problem.pixels)
    return rows


def by_windows(problem: Problem) -> Tensor:
    """im2col and one batched product."""
    gradients = torch.bmm(output_rows(problem), windows(problem).mT)
    return gradients.view(problem.records, *problem.kernel)


def by_groups(problem: Problem) -> Tensor:
    """The records folded into channel groups of one ordinary weight gradient."""
    records, images, geometry = problem.records, problem.images, problem.geometry

    def folded(t: Tensor) -> Tensor:
        if images == 1:
            return t.reshape(1, -1, *t.shape[2:])
        apart: Tensor = t.unflatten(0, (records, images))
        return apart.movedim(1, 0).flatten(1, 2)

    folded_geometry = replace(geometry, groups=records * geometry.groups)
    weight = problem.x.new_empty(1).expand(records * problem.kernel[0], *problem.kernel[1:])
    gradients = folded_geometry.backward(
        folded(problem.x), folded(problem.g), weight, (False, True)
    )[1]
    return gradients.view(records, *problem.kernel)
