"""Per-record convolution weight gradients, written out in one of several ways.

Each way takes blocks of records small enough to stay in cache. None is always the fastest: it
depends on channels, pixels, kernel and memory format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.layers.conv_geometry import Problem

CACHE = 4 << 20


@dataclass(frozen=True)
class WrittenOut:
    """Gradients as [parts, records, elements]; parts in `shape`, permuted, make a kernel.

    The order of a kernel's elements is left as the algorithm produced it; only sums are permuted.
    `squares` are the squared norms, where the algorithm measured them on the way.
    """

    parts: Tensor
    shape: tuple[int, ...]
    order: tuple[int, ...]
    squares: Tensor | None = None

    def squared_norms(self) -> Tensor:
        """‖gradient‖² of each record."""
        if self.squares is not None:
            return self.squares
        wide = torch.promote_types(self.parts.dtype, torch.float32)
        norms: Tensor = torch.linalg.vector_norm(self.parts, dim=2, dtype=wide)
        return norms.square_().sum(0)

    def weighted(self, factors: Tensor) -> Tensor:
        """Σ factor · gradient."""
        factors = factors.to(self.parts.dtype)
        sums = [torch.mv(part.t(), factors) for part in self.parts]
        return torch.cat(sums).view(self.shape).permute(self.order)

    def per_record(self) -> Tensor:
        """The gradients as [records, *kernel]."""
        by_record = self.parts.transpose(0, 1).reshape(-1, *self.shape)
        return by_record.permute(0, *(d + 1 for d in self.order))


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
    out = problem.x.new_empty(1, problem.records, problem.weights)
    groups = problem.geometry.groups
    bytes_per_record = problem.x.element_size() * groups * problem.window * problem.pixels
    for block, part in problem.blocks(bytes_per_record, CACHE):
        product = out[0, block].view(part.records * groups, -1, problem.window)
        torch.bmm(output_rows(part), windows(part).mT, out=product)
    return WrittenOut(out, tuple(problem.kernel), tuple(range(len(problem.kernel))))


def by_windows_above_outputs(problem: Problem) -> WrittenOut:
    """The same product transposed, without channel groups: outputs fill the processor's vectors
    where windows do not."""
    outputs, *window = problem.kernel
    out = problem.x.new_empty(1, problem.records, problem.weights)
    bytes_per_record = problem.x.element_size() * problem.window * problem.pixels
    for block, part in problem.blocks(bytes_per_record, CACHE):
        product = out[0, block].view(part.records, problem.window, outputs)
        torch.bmm(windows(part), output_rows(part).mT, out=product)
    last = len(window)
    return WrittenOut(out, (*window, outputs), (last, *range(last)))


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
    gradients = geometry.backward(x, g, weight, (False, True))[1]
    return WrittenOut(gradients.reshape(1, records, -1), tuple(kernel), tuple(range(len(kernel))))


def by_windows_last(problem: Problem) -> WrittenOut:
    """Windows of a planar image with the channels innermost: long runs to copy."""
    outputs, channels, high, wide = problem.kernel
    (down, right), (tall, broad) = problem.geometry.stride, problem.geometry.dilation
    out = problem.x.new_empty(1, problem.records, problem.weights)
    bytes_per_record = problem.x.element_size() * problem.window * problem.pixels
    for block, part in problem.blocks(bytes_per_record, CACHE):
        padded = _channels_last(part, extra_rows=0)
        image, row, pixel, channel = padded.stride()
        view = padded.as_strided(
            (part.records, *part.g.shape[2:], high, wide, channels),
            (image, row * down, pixel * right, row * tall, pixel * broad, channel),
            padded.storage_offset(),
        )
        product = out[0, block].view(part.records, outputs, -1)
        unfolded = view.reshape(part.records, problem.pixels, problem.window)
        torch.bmm(pixel_rows(part.g).mT, unfolded, out=product)
    return WrittenOut(out, (outputs, high, wide, channels), (0, 3, 1, 2))


def by_shifts_last(problem: Problem) -> WrittenOut:
    """No windows at all: with stride 1, every kernel tap is an offset into the padded image."""
    outputs, channels, high, wide = problem.kernel
    tall, broad = problem.geometry.dilation
    out = problem.x.new_empty(high * wide, problem.records, outputs * channels)
    bytes_per_record = problem.x.element_size() * (problem.x[0].numel() + problem.g[0].numel())
    for block, part in problem.blocks(bytes_per_record, CACHE):
        padded = _channels_last(part, extra_rows=1)
        image, row, pixel, channel = padded.stride()
        width = padded.shape[2]
        rows = pixel_rows(F.pad(part.g, (0, width - part.g.shape[3]))).mT
        for tap in range(high * wide):
            start = (tap // wide) * tall * row + (tap % wide) * broad * pixel
            shifted = padded.as_strided(
                (part.records, rows.shape[2], channels), (image, pixel, channel), start
            )
            torch.bmm(rows, shifted, out=out[tap, block].view(part.records, outputs, channels))
    return WrittenOut(out, (high, wide, outputs, channels), (2, 3, 0, 1))


def by_rows(problem: Problem, pixels_innermost: bool) -> WrittenOut:
    """Windows along the kernel's width only: its rows are offsets into the same copy."""
    outputs, channels, high, wide = problem.kernel
    (down, right), (tall, broad) = problem.geometry.stride, problem.geometry.dilation
    top, left = problem.geometry.padding
    height, width = problem.g.shape[2:]
    rows = height + (high - 1) * tall // down
    bottom = max(0, down * rows - problem.x.shape[2] - top)
    out = problem.x.new_empty(high, problem.records, outputs * channels * wide)
    bytes_per_record = problem.x.element_size() * down * rows * width * channels * wide
    for block, part in problem.blocks(bytes_per_record, CACHE):
        padded = F.pad(part.x, (left, left, top, bottom))
        if not padded.is_contiguous():
            padded = padded.contiguous()
        image, channel, row, pixel = padded.stride()
        sizes, strides = [part.records, down], [image, row]
        space = [(rows, row * down), (width, pixel * right)]
        taps = [(channels, channel), (wide, pixel * broad)]
        inner = taps + space if pixels_innermost else space + taps
        view = padded.as_strided(
            (*sizes, *(n for n, _ in inner)), (*strides, *(s for _, s in inner))
        )
        flat = view.reshape(part.records, down, inner[0][0] * inner[1][0], -1)
        rows_out = pixel_rows(part.g).mT
        for tap in range(high):
            phase, start = tap * tall % down, tap * tall // down * width
            pixels = slice(start, start + height * width)
            chosen = flat[:, phase, :, pixels].mT if pixels_innermost else flat[:, phase, pixels]
            product = out[tap, block].view(part.records, outputs, channels * wide)
            torch.bmm(rows_out, chosen, out=product)
    return WrittenOut(out, (high, outputs, channels, wide), (1, 2, 0, 3))


def _channels_last(problem: Problem, extra_rows: int) -> Tensor:
    """The padded images as contiguous [images, rows, columns, channels]."""
    top, left = problem.geometry.padding
    x = problem.x.permute(0, 2, 3, 1)
    return F.pad(x, (0, 0, left, left, top, top + extra_rows)).contiguous()
