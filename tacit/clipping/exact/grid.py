"""The public grid on which clipped gradients are added up without any rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FACTOR_SLACK = 1 - 2.0**-20
"""Clipping factors are multiplied by this: it covers the rounding of norms and factors."""
MOST_RECORDS = 1 << 26
"""With more records a grid in double precision is too coarse."""
MOST_PARAMETERS = 1 << 28
"""With more parameters the rounding of a squared norm is not covered by `FACTOR_SLACK`."""
_DOUBLE_BITS = 53
_MOST_BITS = 48
_MOST_SHIFT = 8
LEAST_EXPONENT = -90
"""Inputs of a linear layer whose norm is below 2 to this count as zero."""


@dataclass(frozen=True)
class Grid:
    """Integers in units of 2^(exponent − bits) per norm group, exact in double precision.

    Guarantee: at most `records` gradients, each at most 2^exponent long and made of whole units,
    have sums below 2^53 units, and so have all partial sums in any order. Double precision holds
    every one of them exactly.

    >>> grid = Grid.of((1.0,), records=60_000)
    >>> grid.bits, grid.unit(0) == 2.0**-36
    (37, True)
    """

    exponents: tuple[int, ...]
    bits: int

    @classmethod
    def of(cls, bounds: Sequence[float], records: int) -> Grid:
        """The finest grid for so many records whose gradients are clipped to these bounds."""
        assert 0 < records <= MOST_RECORDS
        exponents = tuple(math.frexp(bound)[1] for bound in bounds)
        return cls(exponents, min(_MOST_BITS, _DOUBLE_BITS - (records - 1).bit_length()))

    def unit(self, group: int) -> float:
        """What one step of the grid is worth."""
        return math.ldexp(1.0, self.exponents[group] - self.bits)

    def split(self, inputs: int, outputs: int) -> tuple[int, int]:
        """Bits for the inputs and for the output gradients of a linear layer.

        The wider side gets more, so that truncation costs both about the same.
        """
        shift = round(math.log2(inputs / outputs) / 2)
        shift = max(-_MOST_SHIFT, min(_MOST_SHIFT, shift))
        of_inputs = (self.bits + shift) // 2
        return of_inputs, self.bits - of_inputs


def squared_rows(rows: Tensor) -> Tensor:
    """‖row‖² in double precision: squares of floats are exact there, none is lost or infinite."""
    return rows.double().square_().sum(1)


def exponents_of(squares: Tensor) -> Tensor:
    """Integers e with ‖row‖ ≤ 2^e < 3·‖row‖ from computed ‖row‖²; −1022 for a norm of zero."""
    norms = (squares / FACTOR_SLACK).sqrt_()
    return norms.view(torch.int64).bitwise_right_shift(52) - 1022


def powers_of_two(exponents: Tensor) -> Tensor:
    """2^e in double precision for integers −1022 ≤ e ≤ 1023, exact on every machine."""
    return (exponents.to(torch.int64) + 1023).bitwise_left_shift_(52).view(torch.float64)


def truncated(rows: Tensor, scales: Tensor) -> Tensor:
    """Rows times scales, in double precision, rounded towards zero to whole numbers.

    A row whose scale is zero becomes zero, whatever it holds. No row becomes longer, but for one
    rounding of the product, which is exact where the scale is a power of two.
    """
    quiet = scales == 0
    scaled = rows.double() * scales[:, None]
    return scaled.trunc_().masked_fill_(quiet[:, None], 0.0)
