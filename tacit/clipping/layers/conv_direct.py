"""Per-record convolution weight gradients, written out in one of several ways.

Each way takes blocks of records small enough to stay in cache. None is always the fastest: it
depends on channels, pixels, kernel and memory format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.layers.conv_geometry import Problem
from tacit.clipping.layers.conv_written import WrittenOut, squared_norms, written_in_cache

WriteOut = Callable[[Problem], WrittenOut]


def windows(problem: Problem) -> Tensor:
    """All kernel windows as [records · groups, window, pixels], copied out of padded images."""
    geometry, groups = problem.geometry, problem.geometry.groups
    padded = F.pad(problem.x, geometry.pads) if any(geometry.padding) else problem.x
    padded = padded.contiguous()  # so that long runs are copied
    image, channel, *space = padded.stride()
    channels = problem.kernel[1]
    taps = [s * d for s, d in zip(space, geometry.dilation, strict=True)]
    steps = [s * d for s, d in zip(space, geometry.stride, strict=True)]
    view = padded.as_strided(
        (problem.records, groups, *problem.kernel[1:], problem.images, *problem.g.shape[2:]),
        (problem.images * image, channels * channel, channel, *taps, image, *steps),
        padded.storage_offset(),
    )
    return view.reshape(problem.records * groups, problem.window, problem.pixels)


def output_rows(problem: Problem) -> Tensor:
    """Output gradients as [records · groups, channels per group, pixels]."""
    groups = problem.geometry.groups
    if groups == problem.images == 1:
        return pixel_rows(problem.g).mT
    split: Tensor = problem.g.unflatten(0, (problem.records, problem.images))
    split = split.unflatten(2, (groups, -1)).movedim(1, 3)
    return split.reshape(problem.records * groups, -1, problem.pixels)


def pixel_rows(images: Tensor) -> Tensor:
    """Images as [images, pixels, channels], without a copy in either memory format."""
    if images.is_contiguous():
        return images.flatten(2).mT
    return images.movedim(1, -1).flatten(1, -2)


def by_windows(problem: Problem) -> WrittenOut:
    """Windows with the pixels innermost, and one batched product."""
    groups, kernel = problem.geometry.groups, tuple(problem.kernel)

    def write(few: Problem, out: Tensor) -> None:
        product = out[0].view(few.records * groups, -1, problem.window)
        torch.bmm(output_rows(few), windows(few).mT, out=product)

    copied = problem.x.element_size() * groups * problem.window * problem.pixels
    return written_in_cache(problem, copied, write, kernel, tuple(range(len(kernel))))


def by_windows_above_outputs(problem: Problem) -> WrittenOut:
    """The same product transposed, without channel groups: outputs fill the processor's vectors
    where windows do not."""
    outputs, *window = problem.kernel
    last = len(window)

    def write(few: Problem, out: Tensor) -> None:
        product = out[0].view(few.records, problem.window, outputs)
        torch.bmm(windows(few), output_rows(few).mT, out=product)

    copied = problem.x.element_size() * problem.window * problem.pixels
    return written_in_cache(problem, copied, write, (*window, outputs), (last, *range(last)))


def by_groups(problem: Problem) -> WrittenOut:
    """The records folded into channel groups of one ordinary weight gradient."""
    records, images, kernel = problem.records, problem.images, problem.kernel

    def folded(t: Tensor) -> Tensor:
        if images == 1:
            return t.reshape(1, -1, *t.shape[2:])
        apart: Tensor = t.unflatten(0, (records, images))
        return apart.movedim(1, 0).flatten(1, 2)

    geometry = replace(problem.geometry, groups=records * problem.geometry.groups)
    weight = problem.x.new_empty(1).expand(records * kernel[0], *kernel[1:])
    x, g = folded(problem.x), folded(problem.g)
    gradients = geometry.backward(x, g, weight, (False, True))[1].reshape(1, records, -1)
    order = tuple(range(len(kernel)))
    return WrittenOut([gradients], tuple(kernel), order, squared_norms(gradients))


def by_tiles(problem: Problem, tile: int) -> WrittenOut:
    """Windows of a planar image with the channels innermost: long runs to copy.

    A window serves a tile of so many outputs side by side. Wider tiles have less to copy, but more
    to multiply: products of an output with pixels outside its own window are left out of the sum.
    Columns of a kernel must be next to each other, unless every output is a tile of its own.
    """
    outputs, channels, high, wide = problem.kernel
    (down, right), (tall, broad) = problem.geometry.stride, problem.geometry.dilation
    height, width = problem.g.shape[2:]
    across = -(-width // tile)
    missing = across * tile - width
    columns, step = wide + (tile - 1) * right, right * channels
    seen = (width - 1) * right + wide

    def write(few: Problem, out: Tensor) -> None:
        padded = _channels_last(few, extra_columns=missing * right, seen=seen)
        image, row, pixel, channel = padded.stride()
        view = padded.as_strided(
            (few.records, height, across, high, columns, channels),
            (image, row * down, pixel * right * tile, row * tall, pixel * broad, channel),
            padded.storage_offset(),
        )
        unfolded = view.reshape(few.records, height * across, -1)
        if tile == 1:
            product = out[0].view(few.records, outputs, -1)
            torch.bmm(pixel_rows(few.g).mT, unfolded, out=product)
            return
        g = F.pad(few.g, (0, missing)) if missing else few.g
        rows = g.permute(0, 2, 3, 1).reshape(few.records, height * across, tile * outputs)
        tiles = torch.bmm(rows.mT, unfolded).view(few.records, tile, outputs, high, -1)
        total = out[0].view(few.records, outputs, high, -1)
        first, *others = (
            one[..., at * step : at * step + wide * channels]
            for at, one in enumerate(tiles.unbind(1))
        )
        torch.add(first, others[0], out=total)
        for other in others[1:]:
            total.add_(other)

    elements = high * columns * channels * (height * across + (tile > 1) * tile * outputs)
    copied = problem.x.element_size() * elements
    return written_in_cache(problem, copied, write, (outputs, high, wide, channels), (0, 3, 1, 2))


def by_shifts_last(problem: Problem) -> WrittenOut:
    """No windows at all: with stride 1, every kernel tap is an offset into the padded image."""
    outputs, channels, high, wide = problem.kernel
    tall, broad = problem.geometry.dilation

    def write(few: Problem, out: Tensor) -> None:
        padded = _channels_last(few, extra_rows=1)
        image, row, pixel, channel = padded.stride()
        width = padded.shape[2]
        rows = pixel_rows(F.pad(few.g, (0, width - few.g.shape[3]))).mT
        for tap in range(high * wide):
            start = (tap // wide) * tall * row + (tap % wide) * broad * pixel
            shifted = padded.as_strided(
                (few.records, rows.shape[2], channels), (image, pixel, channel), start
            )
            torch.bmm(rows, shifted, out=out[tap].view(few.records, outputs, channels))

    copied = problem.x.element_size() * (problem.x[0].numel() + problem.g[0].numel())
    shape = (high, wide, outputs, channels)
    return written_in_cache(problem, copied, write, shape, (2, 3, 0, 1), parts=high * wide)


def by_rows(problem: Problem, pixels_innermost: bool) -> WrittenOut:
    """Windows along the kernel's width only: its rows are offsets into the same copy."""
    outputs, channels, high, wide = problem.kernel
    (down, right), (tall, broad) = problem.geometry.stride, problem.geometry.dilation
    top, left = problem.geometry.padding
    height, width = problem.g.shape[2:]
    rows = height + (high - 1) * tall // down
    bottom = max(0, down * rows - problem.x.shape[2] - top)

    def write(few: Problem, out: Tensor) -> None:
        padded = F.pad(few.x, (left, left, top, bottom))
        if not padded.is_contiguous():
            padded = padded.contiguous()
        image, channel, row, pixel = padded.stride()
        sizes, strides = [few.records, down], [image, row]
        space = [(rows, row * down), (width, pixel * right)]
        taps = [(channels, channel), (wide, pixel * broad)]
        inner = taps + space if pixels_innermost else space + taps
        view = padded.as_strided(
            (*sizes, *(n for n, _ in inner)), (*strides, *(s for _, s in inner))
        )
        flat = view.reshape(few.records, down, inner[0][0] * inner[1][0], -1)
        rows_out = pixel_rows(few.g).mT
        for tap in range(high):
            phase, start = tap * tall % down, tap * tall // down * width
            pixels = slice(start, start + height * width)
            chosen = flat[:, phase, :, pixels].mT if pixels_innermost else flat[:, phase, pixels]
            product = out[tap].view(few.records, outputs, channels * wide)
            torch.bmm(rows_out, chosen, out=product)

    copied = problem.x.element_size() * down * rows * width * channels * wide
    shape = (high, outputs, channels, wide)
    return written_in_cache(problem, copied, write, shape, (1, 2, 0, 3), parts=high)


def _channels_last(
    problem: Problem, extra_rows: int = 0, extra_columns: int = 0, seen: int = 0
) -> Tensor:
    """The padded images as contiguous [images, rows, columns, channels].

    Extra columns follow those that some output has `seen`. What lies behind is left out: a gradient
    of zero would not silence a number there that is not finite.
    """
    top, left = problem.geometry.padding
    x, behind = problem.x.permute(0, 2, 3, 1), left
    if extra_columns:
        x = x[:, :, : max(0, seen - left)]
        behind = seen - left - x.shape[2] + extra_columns
    pads = (0, 0, left, behind, top, top + extra_rows)
    return (F.pad(x, pads) if any(pads) else x).contiguous()
