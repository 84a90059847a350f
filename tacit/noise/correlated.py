"""Noise that is correlated over the steps, drawn as a stream.

Each stream yields, step by step, what to add to the gradient so that the running sums carry the
noise of a factor mechanism: binary-tree aggregation or a banded Toeplitz factor. Every draw has
its own address in the random source, so none is ever made twice with different values; what a
stream must remember between steps lies in `memory`, which is saved with the training state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tacit.clipping.contract import ClippedSum
from tacit.errors import ArgumentError, NoProofError
from tacit.noise.gaussian import PrivateGradient
from tacit.noise.source import RandomSource
from tacit.privacy import factors
from tacit.privacy.participation import completed_size
from tacit.privacy.relations import Relation

Memory = dict[str, Tensor]
_BLOCK = 16


class NoiseStream(Protocol):
    """Unit noise of one step after the other."""

    def take(self, step: int) -> Tensor:
        """What to add to the gradient of this step, for noise of unit scale."""
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
        scales = clipped.noise_scales(self._multiplier, Relation.ZERO_OUT)
        self._source.address(f"correlated noise {step}", total, scales)
        noise = self._stream.take(step)
        self._source.address(f"noise of step {step}", noise, scales)
        for part, scale in zip(noise.split(clipped.layout.sizes), scales, strict=True):
            part.mul_(scale)
        vector = total.add_(noise.to(total)).div_(denominator)
        return PrivateGradient(vector, clipped.layout)


class TreeStream:
    """Binary-tree aggregation: the noise of a running sum is that of the nodes that cover it.

    Guarantee: the running sums of what `take` returns equal, after step t, the sum over the
    covering nodes of one draw each. With `reduced`, a node's draw is replaced by Honaker's
    estimate from the subtree below it, which has less variance and costs nothing. A new tree
    starts every `leaves` steps; with `completion` the old one is first filled with empty leaves.
    Memory: one vector per level, and two more.
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

    def take(self, step: int) -> Tensor:
        tree, leaf = divmod(step, self._leaves)
        if step and leaf == 0:
            self._restart(tree - 1)
        self._grow(tree, leaf)
        now = sum((self._memory[name] for name in self._covering(leaf + 1)), self._zero())
        if "before" in self._memory:
            now = now + self._memory["before"]
        change = now - self._memory.get("last", 0.0)
        self._memory["last"] = now
        return change

    def _grow(self, tree: int, leaf: int) -> None:
        """Release the nodes that end with this leaf."""
        top = ((leaf + 1) & -(leaf + 1)).bit_length() - 1
        if not self._reduced:
            for level in range(top):
                self._memory.pop(f"level {level}", None)
            self._memory[f"level {top}"] = self._draw(tree, top, leaf)
            return
        estimate = self._draw(tree, 0, leaf)
        for level in range(1, top + 1):
            own = factors.node_variance(level, True)
            below = self._memory.pop(f"level {level - 1}").add_(estimate)
            estimate = self._draw(tree, level, leaf).mul_(own).add_(below, alpha=1 - own)
        self._memory[f"level {top}"] = estimate

    def _restart(self, tree: int) -> None:
        """Close a tree: its noise stays in the sum for good, from as few nodes as possible."""
        size = self._leaves
        if self._completion:
            for leaf in range(size, completed_size(size)):
                self._grow(tree, leaf)
            size = completed_size(size)
        total = self._memory.pop("before", self._zero())
        for name in list(self._covering(size)):
            total = total + self._memory.pop(name)
        self._memory["before"] = total

    def _covering(self, size: int) -> Iterator[str]:
        return (f"level {level}" for level in range(size.bit_length()) if size >> level & 1)

    def _draw(self, tree: int, level: int, leaf: int) -> Tensor:
        return self._source.normal(f"tree node {tree} {level}", leaf, self._size)

    def _zero(self) -> Tensor:
        return torch.zeros(self._size)


class BandedStream:
    """The banded square-root factor: w = C⁻¹z, row by row.

    Guarantee: step t returns w_t = z_t − Σ_{j<b} c_j·w_{t−j}, so that C·w = z. Older rows enter
    in blocks of 16 steps by one matrix product. Memory: b − 1 rows of the past, and a block.
    """

    def __init__(self, bands: int, size: int, source: RandomSource, memory: Memory) -> None:
        self._coefficients = torch.from_numpy(
            factors.square_root_coefficients(bands).astype(np.float32)
        )
        self._size = size
        self._source = source
        self._memory = memory

    def take(self, step: int) -> Tensor:
        inside = step % _BLOCK
        if inside == 0:
            self._open_block(step)
        block = self._memory["block"]
        row = block[inside]
        row.add_(self._source.normal("banded noise", step, self._size))
        reach = min(inside, len(self._coefficients) - 1)
        if reach:
            weights = self._coefficients[1 : reach + 1].flip(0)
            row.sub_(weights @ block[inside - reach : inside])
        return row.clone()

    def _open_block(self, step: int) -> None:
        """What the rows of the past contribute to the next block, at once."""
        bands = len(self._coefficients)
        past = self._memory.pop("past", torch.empty(0, self._size))
        if "block" in self._memory:
            past = torch.cat([past, self._memory.pop("block")])[-(bands - 1) :][: bands - 1]
        lags = torch.arange(_BLOCK)[:, None] + torch.arange(len(past), 0, -1)[None, :]
        padded = torch.cat([self._coefficients, torch.zeros(1)])
        weights = padded[lags.clamp(max=bands)]
        self._memory["block"] = -(weights @ past)
        if bands > 1:
            self._memory["past"] = past
