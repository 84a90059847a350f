"""Noise that is correlated over the steps: releases of a matrix mechanism, step by step.

A factor mechanism releases C·g + z, where row t of g is step t's sum and z is independent noise;
training uses C⁻¹(C·g + z), whose row t is g_t plus correlated noise. Every row of C·g + z is
released through `tacit.noise.gaussian.noised`, exactly rounded, and everything else is computed
from released values. What a stream must remember between steps lies in `memory`, which is saved
with the training state. Proof for the bits released: docs/proofs/precision.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.clipping.contract import ClippedSum
from tacit.errors import ArgumentError, NoProofError, RunError
from tacit.noise.gaussian import PrivateGradient, noised
from tacit.noise.source import RandomSource
from tacit.privacy import factors
from tacit.privacy.participation import completed_size
from tacit.privacy.relations import Relation

Memory = dict[str, Tensor]
_BLOCK = 16
_GRID = 2.0**-24
"""Sums are rounded to multiples of this, in units of the noise, so that what is computed from them
is exact in double precision."""
_LARGEST = 2.0**16
"""Sums are clamped to this, in units of the noise."""
_LARGEST_NOISE = 2.0**6
_COEFFICIENT_BITS = 12


class NoiseStream(Protocol):
    """Releases one step after the other, in units of the noise."""

    def release(self, step: int, sums: Tensor) -> Tensor:
        """This step's sum with correlated noise of unit scale, in double precision.

        Args:
            step: Steps follow each other without a gap.
            sums: In double precision, multiples of 2⁻²⁴ and at most `largest` in size.
        """
        ...

    @property
    def largest(self) -> float:
        """Sums must not be larger, so that the stream computes exactly."""
        ...


class CorrelatedNoise:
    """Adds a stream's noise to clipped sums, step after step.

    Guarantee: the noised sums together are a function of C·g + σz, where row t of g is step t's
    sum in units of its own bounds and z is standard normal. The scale of a step's noise follows
    its bounds, which may change on the way as long as they depend on public values and past
    releases only. A step's noise is never added to two different sums.
    """

    def __init__(self, stream: NoiseStream, multiplier: float, source: RandomSource) -> None:
        if not (multiplier > 0 and math.isfinite(multiplier)):
            raise ArgumentError(f"noise is {multiplier}; it must be a positive finite number")
        self._stream = stream
        self._multiplier = multiplier
        self._source = source

    def privatise(self, clipped: ClippedSum, step: int, denominator: float) -> PrivateGradient:
        """This step's noise, then division by a public constant (never by a count).

        The result lies in the sum's memory: the sum itself is gone.
        """
        if not isinstance(clipped, ClippedSum):
            raise NoProofError(
                f"noise was asked for a {type(clipped).__name__}; only a ClippedSum knows its"
                " sensitivity"
            )
        total = clipped.spend()
        wider = widening(self._multiplier, total.numel())
        scales = clipped.noise_scales(self._multiplier * wider, Relation.ZERO_OUT)
        self._source.address(f"correlated noise {step}", total, scales)
        sums = total.to("cpu", torch.float64, copy=True)
        for part, scale in zip(sums.split(clipped.layout.sizes), scales, strict=True):
            part.div_(scale)
        largest = min(self._stream.largest, _LARGEST)
        sums.nan_to_num_(nan=0.0).clamp_(-largest, largest).div_(_GRID).round_().mul_(_GRID)
        released = self._stream.release(step, sums)
        for part, scale in zip(released.split(clipped.layout.sizes), scales, strict=True):
            part.mul_(scale / denominator)
        return PrivateGradient(total.copy_(released), clipped.layout)


def widening(multiplier: float, size: int) -> float:
    """By how much noise must grow to cover that sums are rounded to the grid before it is added.

    Two sums that are 1/σ apart in units of the noise are at most 1/σ + 2⁻²³·⁵·√size apart after
    division by the scale and rounding.
    """
    share = multiplier * math.sqrt(size / 2**47)
    if share >= 0.5:
        raise ArgumentError(
            f"noise is {multiplier:g} for {size:,} weights: sums cannot be resolved below it; use"
            " less noise with larger batches"
        )
    return 1 / (1 - share)


class TreeStream:
    """Binary-tree aggregation: running sums are added up from noised sums of nodes.

    Guarantee: what `release` returns is computed from the noised sums of the tree's nodes alone,
    each released once with noise of unit scale. The running sums of what it returns are, after
    step t, the released sums of the nodes that cover steps 0 to t. With `reduced`, Honaker's
    estimate from the subtree below a node takes the place of its own release; it has less variance
    and costs nothing. A new tree starts every `leaves` steps; with `completion` the old one is
    first filled with empty leaves. Memory: two vectors per level, and two more.
    """

    def __init__(
        self,
        leaves: int,
        size: int,
        source: RandomSource,
        memory: Memory,
        *,
        reduced: bool = True,
        completion: bool = False,
    ) -> None:
        self._leaves = leaves
        self._size = size
        self._source = source
        self._memory = memory
        self._reduced = reduced
        self._completion = completion

    @property
    def largest(self) -> float:
        """The sum of a whole tree must fit into 53 bits."""
        levels = completed_size(self._leaves).bit_length()
        return math.ldexp(1.0, 28 - int(levels))

    def release(self, step: int, sums: Tensor) -> Tensor:
        tree, leaf = divmod(step, self._leaves)
        if step and leaf == 0:
            self._restart(tree - 1)
        self._grow(tree, leaf, sums)
        now = sum((self._memory[name] for name in self._covering(leaf + 1)), self._zero())
        if "before" in self._memory:
            now = now + self._memory["before"]
        change = now - self._memory.get("last", 0.0)
        self._memory["last"] = now
        return change

    def _grow(self, tree: int, leaf: int, sums: Tensor) -> None:
        """Release the nodes that end with this leaf. Private sums of nodes whose sibling is still
        to come stay in memory."""
        top = ((leaf + 1) & -(leaf + 1)).bit_length() - 1
        node = sums.clone()
        estimate = self._released(tree, 0, leaf, node) if self._reduced or top == 0 else None
        for level in range(1, top + 1):
            node += self._memory.pop(f"private {level - 1}")
            below = self._memory.pop(f"level {level - 1}", None)
            if estimate is not None and below is not None:
                own = factors.node_variance(level, True)
                below = below.add_(estimate)
                estimate = self._released(tree, level, leaf, node)
                estimate.mul_(own).add_(below, alpha=1 - own)
            elif level == top:
                estimate = self._released(tree, level, leaf, node)
        assert estimate is not None
        self._memory[f"level {top}"] = estimate
        self._memory[f"private {top}"] = node

    def _restart(self, tree: int) -> None:
        """Close a tree: its sum stays in the running sum, from as few nodes as possible."""
        size = self._leaves
        if self._completion:
            for leaf in range(size, completed_size(size)):
                self._grow(tree, leaf, self._zero())
            size = completed_size(size)
        total = self._memory.pop("before", self._zero())
        for name in list(self._covering(size)):
            total = total + self._memory.pop(name)
            self._memory.pop(name.replace("level", "private"))
        self._memory["before"] = total

    def _covering(self, size: int) -> Iterator[str]:
        return (f"level {level}" for level in range(size.bit_length()) if size >> level & 1)

    def _released(self, tree: int, level: int, leaf: int, node: Tensor) -> Tensor:
        return noised(node, 1.0, f"tree node {tree} {level} {leaf}", self._source)

    def _zero(self) -> Tensor:
        return torch.zeros(self._size, dtype=torch.float64)


class BandedStream:
    """The banded square-root factor: g + C⁻¹z, row by row.

    Guarantee: with y_t = u_t + e_t what step t returned for the sum u_t, the step releases
    round(u_t − Σ_{0<j<b} c_j·e_{t−j} + z_t), which is row t of C·u + z less the public
    Σ_{0<j<b} c_j·y_{t−j}, exactly rounded. Coefficients are cut to 12 binary digits, which lowers
    sensitivity, and everything but z is computed exactly. Older rows enter in blocks of 16 steps
    by one matrix product. Memory: b − 1 rows of e, and a block.
    """

    def __init__(self, bands: int, size: int, source: RandomSource, memory: Memory) -> None:
        self._coefficients = torch.from_numpy(cut_coefficients(bands))
        self._size = size
        self._source = source
        self._memory = memory

    @property
    def largest(self) -> float:
        return _LARGEST

    def release(self, step: int, sums: Tensor) -> Tensor:
        inside = step % _BLOCK
        if inside == 0:
            self._open_block()
        block = self._memory["block"]
        row = block[inside]
        reach = min(inside, len(self._coefficients) - 1)
        if reach:
            weights = self._coefficients[1 : reach + 1].flip(0)
            row.sub_(weights @ block[inside - reach : inside])
        released = noised(row + sums, 1.0, f"banded noise {step}", self._source)
        torch.sub(released, sums, out=row)
        if float(row.abs().max()) > _LARGEST_NOISE:
            raise RunError(
                f"noise of more than {_LARGEST_NOISE:g} standard deviations was drawn, which"
                " happens with probability below 2^-500; something is broken on this machine"
            )
        return released

    def _open_block(self) -> None:
        """What the rows of the past contribute to the next block, at once."""
        bands = len(self._coefficients)
        past = self._memory.pop("past", torch.empty(0, self._size, dtype=torch.float64))
        if "block" in self._memory:
            past = torch.cat([past, self._memory.pop("block")])[-(bands - 1) :][: bands - 1]
        lags = torch.arange(_BLOCK)[:, None] + torch.arange(len(past), 0, -1)[None, :]
        padded = torch.cat([self._coefficients, torch.zeros(1, dtype=torch.float64)])
        weights = padded[lags.clamp(max=bands)]
        self._memory["block"] = -(weights @ past)
        if bands > 1:
            self._memory["past"] = past


def cut_coefficients(bands: int) -> NDArray[np.float64]:
    """Coefficients of the square-root factor, cut to 12 binary digits behind the point.

    All are positive, and so are the inner products that sensitivity is made of: cutting lowers it.
    """
    unit = 2.0**_COEFFICIENT_BITS
    return np.floor(factors.square_root_coefficients(bands) * unit) / unit
