"""Gaussian noise that is exact for the bits released: round((x + z)/γ), z an ideal Gaussian.

The result is the correctly rounded value for a z with infinitely many digits, so releasing it is
post-processing of the ideal Gaussian mechanism on the number x. z = s·Φ⁻¹(U), and the bits of U are
read from the keystream only as far as the rounding needs them:

1. single precision with a certified error decides all but about 6 of 10,000 coordinates
   (`tacit/native/src/noise.cpp`, or NumPy here);
2. comparing 32 bits of U with Φ in double precision decides all but about 6 of 10 million;
3. ball arithmetic decides the rest, with as many bits of U as it takes.

All three decide the same thing, so instruction sets, threads and the presence of the kernels do
not change a bit. Proof: docs/proofs/precision.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
from flint import arb, ctx, fmpq
from numpy.typing import NDArray

from tacit.errors import ArgumentError
from tacit.noise import quantile

SAMPLER = "exactly rounded Gaussian, version 1"
"""Names the noise of a run in its ledger. Change it whenever a bit of the noise changes, be it by
its definition or by how it is addressed (`RandomSource.address`)."""

LARGEST = 2.0**30
"""|x| is clamped to this many grid steps: far above any sum, and clamping moves no two apart."""
_RATIO_BITS = 8
_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**-100, 2.0**100
_SLACK = 1 + 2.0**-16
"""Covers the rounding of the margins themselves."""
_BLOCK = 1 << 16

Values = NDArray[np.float32] | NDArray[np.float64]
Words = NDArray[np.uint32]
Further = Callable[[int, int], int]
"""The word of a coordinate at a level: more bits of its U."""


@dataclass(frozen=True)
class Grid:
    """The grid on which noise of one scale is released, and when single precision decides.

    The scale is rounded up to single precision. The grid step is a power of two with
    128 ≤ ratio = scale/step < 256, so rounding adds less than 6e-6 of the variance.
    """

    scale: float
    step: float
    ratio: float
    limit: float
    slope: float

    @classmethod
    def of(cls, scale: float) -> Grid:
        """The grid for a standard deviation."""
        if not _SMALLEST_SCALE <= scale <= _LARGEST_SCALE:
            raise ArgumentError(
                f"the standard deviation of the noise is {scale}; it must lie between 2^-100 and"
                " 2^100. Rescale the loss or the clipping bound"
            )
        single = np.float32(scale)
        if float(single) < scale:
            single = np.nextafter(single, np.float32(np.inf))
        mantissa, exponent = math.frexp(float(single))
        ratio = math.ldexp(mantissa, _RATIO_BITS)
        constant = ratio * quantile.QUANTILE_ERROR * _SLACK + 2.0**-22
        slope = ratio * (quantile.QUANTILE_SLOPE + 2.0**-23) * _SLACK
        step = math.ldexp(1.0, exponent - _RATIO_BITS)
        return cls(float(single), step, ratio, 0.5 - constant, slope)


@dataclass(frozen=True)
class Run:
    """Consecutive coordinates whose noise has the same scale: up to `end`, on `grid`.

    What is released is the multiple of the grid step times `factor`.
    """

    end: int
    grid: Grid
    factor: float


def runs(ends: Sequence[int], scales: Sequence[float], divisor: float) -> list[Run]:
    """Runs of coordinates: the scale changes after each of `ends`."""
    grids = {scale: Grid.of(scale) for scale in set(scales)}
    return [
        Run(end, grids[scale], grids[scale].step / divisor)
        for end, scale in zip(ends, scales, strict=True)
    ]


def release_(vector: Values, parts: Sequence[Run], words: Iterator[Words]) -> list[int]:
    """Replace a vector by its noised and rounded self, without the compiled kernels.

    Args:
        vector: One-dimensional, changed in place.
        parts: Scales by coordinate.
        words: One word for each coordinate, in pieces that cover the vector.

    Returns:
        Coordinates that 32 bits do not decide; these are left as they are.
    """
    undecided: list[int] = []
    start = 0
    for piece in words:
        for first in range(0, len(piece), _BLOCK):
            low, high = start + first, min(start + first + _BLOCK, start + len(piece))
            for before, part in zip((0, *(p.end for p in parts)), parts, strict=False):
                begin, end = max(low, before), min(high, part.end)
                if begin < end:
                    within = piece[begin - start : end - start]
                    rest = _release_part_(vector[begin:end], part, within)
                    undecided += [begin + int(i) for i in rest]
        start += len(piece)
    return undecided


def _release_part_(x: Values, part: Run, words: Words) -> NDArray[np.intp]:
    grid = part.grid
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        t = np.clip(np.nan_to_num(x * x.dtype.type(1 / grid.step), nan=0.0), -LARGEST, LARGEST)
    n = np.rint(t)
    fractions = t - n
    signed = words.view(np.int32)
    folded = signed ^ (signed >> 31)
    sizes = quantile.magnitude(np.maximum(folded, quantile.LOWEST))
    z = np.where(signed < 0, -sizes, sizes)
    v = fractions.astype(np.float32) + np.float32(grid.ratio) * z
    k = np.rint(v)
    off = np.abs(v - k) + np.float32(grid.slope) * sizes
    is_open = (folded < quantile.LOWEST) | ~(off <= np.float32(grid.limit))
    places = np.flatnonzero(is_open)
    steps, decided = _by_tail(
        x[places].astype(np.float64), grid, folded[places], signed[places] < 0
    )
    total = n + k.astype(n.dtype) + n.dtype.type(0)  # no −0, whose sign would be that of x
    total[places] = steps.astype(n.dtype)
    kept = x[places[~decided]]
    np.multiply(total, x.dtype.type(part.factor), out=x)
    x[places[~decided]] = kept
    return places[~decided]


def _by_tail(
    x: NDArray[np.float64], grid: Grid, folded: NDArray[np.int32], negative: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Round (x + z)/step by comparing 32 bits of U with Q: the multiples, and which are decided.

    The first guess is always verified, so only speed depends on it.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        t = np.clip(np.nan_to_num(x / grid.step, nan=0.0), -LARGEST, LARGEST)
    n = np.rint(t)
    fractions = np.where(negative, n - t, t - n)
    low = folded.astype(np.float64) * 2.0**-32
    high = low + 2.0**-32
    k = np.maximum(np.rint(fractions + grid.ratio * _guess(high)), 0.0)
    decided = np.zeros(len(x), dtype=bool)
    while True:
        upper = (k + 0.5 - fractions) / grid.ratio
        lower = np.maximum((k - 0.5 - fractions) / grid.ratio, 0.0)
        near = (upper <= quantile.TAIL_END) & (folded > 0)
        above, below = (quantile.tail(np.minimum(b, quantile.TAIL_END)) for b in (upper, lower))
        error = quantile.TAIL_ERROR
        more = near & (high < above * (1 - error))
        less = near & (lower > 0) & (low > below * (1 + error))
        k += more
        k -= less
        if not (more | less).any():
            is_below = low > above * (1 + error)
            is_above = (lower == 0) | (high < below * (1 - error))
            decided = near & is_below & is_above
            return n + np.where(negative, -k, k) + 0.0, decided


def _guess(u: NDArray[np.float64]) -> NDArray[np.float64]:
    root = np.sqrt(-2 * np.log(u))
    guess: NDArray[np.float64] = np.polynomial.polynomial.polyval(root, quantile.FAR_TAIL)
    return np.maximum(guess, 0.0)


def settle_(vector: Values, parts: Sequence[Run], undecided: Sequence[int], word: Further) -> None:
    """Decide the coordinates that `release_` or the kernels left open, in ball arithmetic."""
    for place in undecided:
        part = next(p for p in parts if place < p.end)
        steps = exact_steps(vector[place : place + 1], part.grid, partial(word, place))
        kind = vector.dtype.type
        vector[place] = kind(steps) * kind(part.factor)


def exact_steps(x: Values, grid: Grid, word: Callable[[int], int]) -> int:
    """The integer nearest to (x + z)/step, z = scale·Φ⁻¹(U), with bits of U from `word`.

    The first bit is the sign of z; the others are those of the tail probability Q(|z|) < ½.
    """
    first = word(0)
    negative = bool(first >> 31)
    digits, bits = (first ^ 0xFFFFFFFF if negative else first), 32
    t = _in_steps(x, grid)
    n = round(t)
    fraction = n - t if negative else t - n
    level, before = 0, ctx.prec
    try:
        while True:
            level += 1
            digits, bits = digits << 32 | word(level), bits + 32
            ctx.prec = 2 * bits + 64
            nearest = {_nearest(fraction, grid, end, bits) for end in (digits, digits + 1)}
            found = nearest.pop()
            if found is not None and not nearest:
                return n - found if negative else n + found
    finally:
        ctx.prec = before


def _nearest(fraction: Fraction, grid: Grid, digits: int, bits: int) -> int | None:
    """The integer nearest to fraction + ratio·|z|, Q(|z|) = digits·2^−bits, if it is certain."""
    if digits == 0:
        return None
    tail = arb(digits) / (arb(2) ** (bits - 1))
    size = arb(2).sqrt() * tail.erfcinv() if digits.bit_length() < bits else arb(0)
    exact = arb(fmpq(fraction.numerator, fraction.denominator))
    found = (exact + arb(grid.ratio) * size + arb(0.5)).floor().unique_fmpz()
    return None if found is None else int(found)


def _in_steps(x: Values, grid: Grid) -> Fraction:
    """The first element of x, in steps of the grid, clamped; exact also where subnormal numbers
    are flushed to zero."""
    fraction_bits, kind = (23, "<I") if x.dtype == np.float32 else (52, "<Q")
    (raw,) = struct.unpack(kind, x[:1].tobytes())
    digits = raw & ((1 << fraction_bits) - 1)
    width = 8 * x.itemsize - 1 - fraction_bits
    exponent = raw >> fraction_bits & ((1 << width) - 1)
    largest = Fraction(LARGEST)
    sign = -1 if raw >> (fraction_bits + width) else 1
    if exponent == (1 << width) - 1:
        return Fraction(0) if digits else sign * largest
    if exponent:
        digits |= 1 << fraction_bits
    power: int = max(exponent, 1) - ((1 << width - 1) - 1) - fraction_bits
    value = Fraction(sign * digits) * Fraction(2) ** power / Fraction(grid.step)
    return max(-largest, min(largest, value))
