"""The weight gradients of a convolution, by the way that suits its shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from tacit import native
from tacit.clipping.layers.choice import Algorithm, Chooser
from tacit.clipping.layers.contributions import Contribution, Dense, Mergeable, raised, zeroed
from tacit.clipping.layers.conv_direct import (
    WriteOut,
    by_groups,
    by_rows,
    by_shifts_last,
    by_tiles,
    by_windows,
    by_windows_above_outputs,
)
from tacit.clipping.layers.conv_geometry import Problem
from tacit.clipping.layers.conv_gram import norms_by_pixels, norms_by_windows, pixels_of
from tacit.clipping.layers.conv_native import (
    by_kernels,
    by_winograd,
    norms_by_compiled_pixels,
    norms_by_kernels,
    norms_by_winograd,
    suits_kernels,
    suits_pixels,
    suits_winograd,
    summed_by_kernels,
    summed_by_winograd,
    sums_by_kernels,
)
from tacit.clipping.layers.conv_written import WrittenOut, squared_norms

_WORTH_KEEPING = 4
"""Gradients are kept until the factors are known if they take at most so many times the memory
of the images and output gradients that they come from."""

_CACHED = 16 << 20
_MOVED_IN_CACHE, _MOVED = 12, 40
"""What it costs to write an element of a gradient and to read it again, in multiplications."""

_PRODUCT = 8
"""Bytes of an inner product."""

_TILES = (2, 4)
"""Outputs side by side that are worth taking together."""

Measure = Callable[[Problem], Tensor]


class Kernels(Mergeable):
    """Record r's gradient is the weight gradient of its own images.

    Holds images and output gradients, or from the moment they are written out the gradients.
    """

    def __init__(self, problem: Problem, chooser: Chooser) -> None:
        self._held: Problem | WrittenOut = problem
        self._chooser = chooser

    def squared_norms(self) -> Tensor:
        problem = self._held
        assert isinstance(problem, Problem)
        x, g = problem.x, problem.g
        key = (
            *("convolution", x.shape[1:], g.shape[1:], problem.kernel, problem.geometry),
            *(problem.images, x.dtype, x.device, x.is_contiguous(), g.is_contiguous()),
            *(torch.get_num_threads(), native.active()),
        )
        settled = self._chooser.settled
        way = settled.get((key, problem.records))
        if way is None:
            chosen = self._chooser.pick(key, problem.records, self._algorithms(problem))
            way = next(each for each in _ways(problem) if each.name == chosen.name)
            settled[key, problem.records] = way
        return self._run(problem, way)

    def _algorithms(self, problem: Problem) -> list[Algorithm]:
        return [self._algorithm(problem, way) for way in _ways(problem)]

    def _run(self, problem: Problem, way: _Way) -> Tensor:
        result = way.function(problem)
        if isinstance(result, Tensor):
            return result
        self._held = result
        return result.squares

    def _algorithm(self, problem: Problem, way: _Way) -> Algorithm:
        def trial(records: int) -> None:
            few = problem.part(0, records)
            result, ones = way.function(few), problem.x.new_ones(records)
            if isinstance(result, Tensor):
                _summed(few, ones, problem.x.new_empty(problem.kernel))
            else:
                result.weighted(ones)

        run = partial(self._run, problem, way)
        return Algorithm(way.name, way.cost, way.memory, way.keeps, run, trial)

    def add_weighted(self, factors: Tensor, total: Tensor) -> None:
        total.add_(self._weighted(factors, total))

    def write_weighted(self, factors: Tensor, total: Tensor) -> None:
        total.copy_(self._weighted(factors, total))

    def _weighted(self, factors: Tensor, like: Tensor) -> Tensor:
        if isinstance(self._held, WrittenOut):
            return self._held.weighted(factors)
        return _summed(self._held, factors, like)

    def per_record(self) -> Tensor:
        held = self._held
        return (by_windows(held) if isinstance(held, Problem) else held).per_record()

    def merged(self, others: Sequence[Contribution]) -> Contribution:
        alike = [self, *(other for other in others if isinstance(other, Kernels))]
        held = [one._held for one in alike if isinstance(one._held, Problem)]
        first = held[0]
        if any(problem.shape != first.shape for problem in held):
            total = torch.stack([one.per_record() for one in alike]).sum(0)
            return Dense(total)
        return Kernels(first.joined(held[1:]), self._chooser)

    def silence(self, records: Tensor) -> None:
        held = self._held
        if isinstance(held, WrittenOut):
            each = records.split([piece.shape[1] for piece in held.pieces])
            silenced = [
                piece.masked_fill(some[None, :, None], 0)
                for piece, some in zip(held.pieces, each, strict=True)
            ]
            self._held = replace(held, pieces=silenced)
        else:
            images = records.repeat_interleave(held.images)
            self._held = replace(held, x=zeroed(held.x, images), g=zeroed(held.g, images))


class _Way(NamedTuple):
    """A way to the squared norms of a problem, or with `keeps` to its gradients.

    `cost` is in multiplications per record, the weighted sum included; `memory` in bytes.
    """

    name: str
    cost: float
    memory: int
    keeps: bool
    function: Callable[[Problem], Tensor | WrittenOut]


def _ways(problem: Problem) -> Iterator[_Way]:
    """All that are worth considering."""
    item = problem.x.element_size()
    operands = item * (problem.x.numel() + problem.g.numel())
    kept = item * problem.records * problem.weights
    if kept <= _WORTH_KEEPING * operands:
        for name, cost, way in _ways_to_write_out(problem):
            times = 1 if _joins_images(way, problem) else 2 * problem.images + 1
            yield _Way(name, cost, times * kept, True, partial(_by_record, way))
    for name, cost, memory, measure in _ways_to_measure(problem):
        yield _Way(name, cost, memory, False, measure)


def _ways_to_write_out(problem: Problem) -> Iterator[tuple[str, float, WriteOut]]:
    """Name, cost in multiplications per record, and function."""
    groups, (outputs, channels, *taps) = problem.geometry.groups, problem.kernel
    kept = problem.x.element_size() * problem.records * problem.weights
    moved = (_MOVED if kept > _CACHED else _MOVED_IN_CACHE) * problem.weights

    def cost(products: int, width: int, copied: float) -> float:
        height = _full_lanes(outputs // groups)
        return moved + copied + products * problem.pixels * height * _full_lanes(width)

    unfolded = groups * problem.window * problem.pixels
    yield "windows", cost(groups, problem.window, 8 * unfolded), by_windows
    yield "groups", moved + 3 * problem.pixels * problem.weights, by_groups
    if groups == 1:
        transposed = cost(1, problem.window, 8 * unfolded)
        yield "windows above outputs", transposed, by_windows_above_outputs
    if not _planar(problem):
        return
    if suits_kernels(problem):
        yield "kernels", moved + _kernels_cost(problem), by_kernels
    if suits_winograd(problem):
        yield "Winograd", moved + _winograd_cost(problem), by_winograd
    high, wide = taps
    yield "windows, channels last", cost(1, problem.window, 4 * unfolded), partial(by_tiles, tile=1)
    for tile in _TILES if problem.geometry.dilation[1] == 1 else ():
        shared = wide + (tile - 1) * problem.geometry.stride[1]
        once = cost(1, high * shared * channels, 4 * unfolded * shared / (wide * tile))
        yield f"tiles of {tile}", once, partial(by_tiles, tile=tile)
    along_rows = cost(high, channels * wide, 8 * unfolded / high)
    yield "rows", along_rows, partial(by_rows, pixels_innermost=True)
    yield "rows, taps last", along_rows, partial(by_rows, pixels_innermost=False)
    if problem.geometry.stride == (1, 1):
        yield "shifts", 1.1 * cost(high * wide, channels, 0), by_shifts_last


def _full_lanes(width: int) -> int:
    """A narrow matrix costs as much as one that fills the processor's vectors."""
    return -(-width // 16) * 16


def _ways_to_measure(problem: Problem) -> Iterator[tuple[str, float, int, Measure]]:
    """Name, cost with the weighted sum afterwards, memory in bytes, and function."""
    item, pixels = problem.x.element_size(), problem.pixels
    groups, channels = problem.geometry.groups, problem.x.shape[1] + problem.g.shape[1]
    copied = groups * problem.window * pixels
    winograd = suits_winograd(problem)
    once = _winograd_cost(problem) if winograd else pixels * problem.weights
    if _planar(problem) and problem.images == 1:
        pairs = pixels_of(problem) ** 2
        sides = zip(problem.geometry.stride, problem.kernel[2:], strict=True)
        phases = math.prod(min(step, taps) for step, taps in sides)
        products = problem.g.shape[1] + phases * (problem.x.shape[1] + 8)
        cost = 2 * pairs * (products + 8 * sum(problem.kernel[2:]))
        yield "pixel products", once + cost, 4 * _PRODUCT * pairs, norms_by_pixels
        if suits_pixels(problem):
            cost = pairs * (channels + 2 * math.prod(problem.kernel[2:]))
            memory = 3 * _PRODUCT * pairs * torch.get_num_threads()
            yield "kernels, pixel products", once + cost, memory, norms_by_compiled_pixels
    if suits_kernels(problem) and problem.images == 1:
        measure = partial(_raised, norms_by_kernels)
        yield "kernels, measured", once + _kernels_cost(problem), 0, measure
    if winograd and problem.images == 1:
        measure = partial(_raised, norms_by_winograd)
        yield "Winograd, measured", once + _winograd_cost(problem), 0, measure
    memory = _PRODUCT * (2 * groups * pixels**2 + copied)
    cost = 2 * pixels * (copied + pixels * problem.g.shape[1])
    yield "window products", once + cost, memory, norms_by_windows
    memory = 2 * item * (copied + problem.weights)
    measure = partial(_raised, partial(_norms_by_writing_out, by_windows))
    yield "windows, twice", 3 * once + 8 * copied, memory, measure
    if _planar(problem) and problem.images == 1:
        measure = partial(_raised, partial(_norms_by_writing_out, partial(by_tiles, tile=1)))
        yield "windows, channels last, twice", 3 * once + 4 * copied, memory, measure


def _kernels_cost(problem: Problem) -> float:
    """The compiled kernels keep output channels in the processor's vectors, and copy nothing."""
    return 0.9 * problem.pixels * problem.window * _full_lanes(problem.kernel[0])


def _winograd_cost(problem: Problem) -> float:
    """Products of transformed tiles, and transforms of tiles and gradients."""
    outputs, channels = problem.kernel[:2]
    tiles = math.prod((n + 1) // 2 for n in problem.g.shape[2:]) * problem.images
    return 16 * tiles * (outputs * channels + 4 * (outputs + channels)) + 7 * problem.weights


def _summed(problem: Problem, factors: Tensor, weight: Tensor) -> Tensor:
    """The weighted sum of gradients that were measured, not kept."""
    if suits_winograd(problem):
        return summed_by_winograd(problem, factors)
    if sums_by_kernels(problem):
        return summed_by_kernels(problem, factors)
    return problem.summed(factors, weight)


def _planar(problem: Problem) -> bool:
    """Whether the ways that know rows and columns apply."""
    return len(problem.kernel) == 4 and problem.geometry.groups == 1


def _joins_images(way: WriteOut, problem: Problem) -> bool:
    """Whether a way adds up the gradients of a record's images, if there are several."""
    return problem.images == 1 or way in (by_windows, by_windows_above_outputs, by_groups)


def _by_record(way: WriteOut, problem: Problem) -> WrittenOut:
    """Write out, also by a way that only knows one image per record."""
    if _joins_images(way, problem):
        return way(problem)
    written = way(problem.per_image)
    summed = written.joined().unflatten(1, (-1, problem.images)).sum(2)
    return replace(written, pieces=[summed], squares=squared_norms(summed))


def _raised(measure: Measure, problem: Problem) -> Tensor:
    """Norms of gradients that will be formed once more, and rounded another way, in their sum.

    The norms of what output pixels add to a gradient are together at most those of all outputs and
    of all windows, and no pixel is in more windows than a kernel has taps.
    """
    squares = measure(problem)
    sizes = _norms(problem, problem.x)
    if not sizes.isfinite().all():
        sizes = _norms(problem, problem.seen)
    sizes *= _norms(problem, problem.g) * math.sqrt(math.prod(problem.kernel[2:]))
    return raised(squares, sizes, problem.pixels)


def _norms(problem: Problem, images: Tensor) -> Tensor:
    """Of every record's images."""
    apart = images.unflatten(0, (problem.records, -1))
    wide = torch.promote_types(images.dtype, torch.float32)
    norms: Tensor = torch.linalg.vector_norm(apart, dim=tuple(range(1, apart.dim())), dtype=wide)
    return norms


def _norms_by_writing_out(way: WriteOut, problem: Problem) -> Tensor:
    """Write the gradients out a few at a time and keep only their norms."""
    size = problem.x.element_size() * problem.weights
    blocks = problem.blocks(size, 4 << 20)
    return torch.cat([way(part).squares for _, part in blocks])
