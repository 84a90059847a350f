"""The weight gradients of a convolution, by the way that suits its shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tacit.clipping.layers.choice import Algorithm, Chooser
from tacit.clipping.layers.contributions import Contribution, zeroed
from tacit.clipping.layers.conv_direct import (
    WriteOut,
    WrittenOut,
    by_groups,
    by_rows,
    by_shifts_last,
    by_windows,
    by_windows_last,
)
from tacit.clipping.layers.conv_geometry import Problem
from tacit.clipping.layers.conv_gram import norms_by_pixels, norms_by_windows, padded_pixels

_TRIAL_RECORDS = 32


class Kernels(Contribution):
    """Record r's gradient is the weight gradient of its own images.

    Holds images and output gradients, or from the moment they are written out the gradients.
    """

    def __init__(self, problem: Problem, chooser: Chooser) -> None:
        self._held: Problem | WrittenOut = problem
        self._chooser = chooser

    def squared_norms(self) -> Tensor:
        assert isinstance(self._held, Problem)
        x, g = self._held.x, self._held.g
        key = (
            *("convolution", x.shape[1:], g.shape[1:], self._held.kernel, self._held.geometry),
            *(self._held.images, x.dtype, x.device, x.is_contiguous(), g.is_contiguous()),
            torch.get_num_threads(),
        )
        return self._chooser.pick(key, self._algorithms(self._held)).run()

    def _algorithms(self, problem: Problem) -> list[Algorithm]:
        item, pixels, weights = problem.x.element_size(), problem.pixels, problem.weights
        products = pixels * weights
        copied = problem.geometry.groups * problem.window * pixels
        outputs = problem.g[0].numel() * problem.images
        kept = item * problem.records * weights
        found = []

        few = problem.part(0, min(problem.records, _TRIAL_RECORDS))
        ones = problem.x.new_ones(few.records)

        def write_out(name: str, cost: float, way: WriteOut) -> None:
            def run() -> Tensor:
                self._held = _by_record(way, problem)
                return self._held.squared_norms()

            def trial() -> Tensor:
                written = _by_record(way, few)
                return written.squared_norms().sum() + written.weighted(ones).sum()

            found.append(Algorithm(name, cost, kept, run, trial))

        def measure(name: str, cost: float, memory: int, way: Callable[[Problem], Tensor]) -> None:
            def trial() -> Tensor:
                return way(few).sum() + few.summed(ones, problem.x.new_empty(problem.kernel)).sum()

            found.append(Algorithm(name, cost, memory, partial(way, problem), trial))

        written = products + 8 * weights
        write_out("windows", written + 8 * copied, by_windows)
        write_out("groups", 2 * written, by_groups)
        if _planar(problem):
            write_out("windows, channels last", written + 4 * copied, by_windows_last)
            write_out("rows", written + 6 * copied, partial(by_rows, pixels_innermost=True))
            write_out(
                "rows, taps last", written + 6 * copied, partial(by_rows, pixels_innermost=False)
            )
            if problem.geometry.stride == (1, 1):
                write_out("shifts", 1.2 * written, by_shifts_last)
        if _planar(problem) and problem.images == 1:
            padded = padded_pixels(problem)
            grams = padded**2 * problem.x.shape[1] + pixels * outputs
            sums = 8 * sum(problem.kernel[2:]) * padded**2
            memory = 3 * item * padded**2
            measure("pixel products", products + grams + sums, memory, norms_by_pixels)
        grams = pixels * (copied + outputs)
        memory = item * (2 * problem.geometry.groups * pixels**2 + copied)
        measure("window products", products + grams, memory, norms_by_windows)
        memory = 2 * item * (copied + weights)
        measure("windows, twice", 2 * written + 8 * copied, memory, _norms_by_writing_out)
        return found

    def add_weighted(self, factors: Tensor, total: Tensor) -> None:
        if isinstance(self._held, WrittenOut):
            total.add_(self._held.weighted(factors))
        else:
            total.add_(self._held.summed(factors, total))

    def per_record(self) -> Tensor:
        held = self._held
        return (by_windows(held) if isinstance(held, Problem) else held).per_record()

    def silence(self, records: Tensor) -> None:
        held = self._held
        if isinstance(held, WrittenOut):
            self._held = replace(held, parts=held.parts.masked_fill(records[None, :, None], 0))
        else:
            images = records.repeat_interleave(held.images)
            self._held = replace(held, x=zeroed(held.x, images), g=zeroed(held.g, images))


def _planar(problem: Problem) -> bool:
    """Whether the ways that know rows and columns apply."""
    return len(problem.kernel) == 4 and problem.geometry.groups == 1


def _by_record(way: WriteOut, problem: Problem) -> WrittenOut:
    """Write out, also by a way that only knows one image per record."""
    if problem.images == 1 or way in (by_windows, by_groups):
        return way(problem)
    written = way(problem.per_image)
    return replace(written, parts=written.parts.unflatten(1, (-1, problem.images)).sum(2))


def _norms_by_writing_out(problem: Problem) -> Tensor:
    """Write the gradients out a few at a time and keep only their norms."""
    size = problem.x.element_size() * problem.weights
    blocks = problem.blocks(size, 8 << 20)
    return torch.cat([by_windows(part).squared_norms() for _, part in blocks])
