"""The quantile function of the normal distribution, with certified error bounds.

Noise is decided by comparing uniform bits with Φ (see `rounding.py`). Two approximations make this
fast: Φ⁻¹ in single precision, with the error bound `QUANTILE_ERROR`, and the upper tail Q = 1 − Φ
in double precision, with the relative error bound `TAIL_ERROR`. Both bounds hold for any order of
IEEE operations that the expressions allow, with or without fused multiply-add, and are derived in
docs/proofs/precision.md; tests/noise/test_quantile_bounds.py recomputes them in ball arithmetic.

Written by hand because no library states a proven bound for its Φ or Φ⁻¹. Ball arithmetic comes
from python-flint (Arb).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from flint import arb, ctx
from numpy.typing import NDArray

LOWEST = 1 << 19
"""Words are folded to [0, 2³¹); below this one the approximation of Φ⁻¹ is not used."""
LOG_COEFFICIENTS = tuple(
    map(
        float.fromhex,
        (
            *("-0x1.7154c4p+0", "0x1.71582ep-1", "-0x1.ebff06p-2", "0x1.6f93b2p-2"),
            *("-0x1.30659ap-2", "0x1.173e2p-2", "-0x1.5d75ap-3"),
        ),
    )
)
"""−log₂(1 + f)/f in powers of f, for √½ ≤ 1 + f ≤ √2."""
QUANTILE_COEFFICIENTS = tuple(
    map(
        float.fromhex,
        (
            *("0x1.2b16f2p+1", "0x1.e24694p-3", "-0x1.0c1af6p-8", "-0x1.701806p-12"),
            *("0x1.007ff8p-14", "-0x1.a0a5e2p-19", "-0x1.e7e3b8p-23", "0x1.7e4456p-25"),
            *("-0x1.868e36p-30", "-0x1.b46d2p-33", "0x1.fef052p-37"),
        ),
    )
)
"""|Φ⁻¹(u)|/(1 − 2u) in powers of w − `QUANTILE_CENTRE`, w = −log₂(4u(1 − u)); Giles (2010)."""
QUANTILE_CENTRE = 4.5
QUANTILE_ERROR = 4e-7
QUANTILE_SLOPE = 3.1e-7
"""|`magnitude(m)` − |z|| ≤ `QUANTILE_ERROR` + `QUANTILE_SLOPE`·|z|, z = Φ⁻¹(U), for every U in
[m, m + 1)·2⁻³² and every m from `LOWEST` on."""

TAIL_NODES = 145
TAIL_DEGREE = 12
TAIL_SPACING = 1 / 16
TAIL_END = 9.0
TAIL_ERROR = 2.0**-42
"""Bound on the relative error of Q(b) from `tail_table`, for an argument 0 ≤ b ≤ `TAIL_END` that
is itself off by a relative error of at most 2⁻⁵¹."""
FAR_TAIL = (-1.29672971, 1.29225172, -3.90038262e-02, 2.70392983e-03, -7.55096207e-05)
"""|Φ⁻¹(u)| in powers of √(−2 log u) in the far tail: a first guess that is always checked."""

_SQRT_HALF_BITS = 0x3F3504F3
Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]


def magnitude(folded: NDArray[np.int32]) -> Singles:
    """|Φ⁻¹(U)| for U in [m, m + 1)·2⁻³², m the elements of `folded`.

    The error bound above holds. Single precision, the same expression as in the compiled kernels.
    """
    one, half, quarter = np.float32(1), np.float32(0.5), np.float32(0.25)
    scaled = folded.astype(np.float32) * np.float32(2.0**-30) + np.float32(2.0**-31)
    share = one - half * scaled
    product = scaled * (one - quarter * scaled)
    bits = product.view(np.int32)
    exponent = (bits - np.int32(_SQRT_HALF_BITS)) >> 23
    f = (bits - (exponent << 23)).view(np.float32) - one
    w = _horner(LOG_COEFFICIENTS, f)
    w *= f
    w -= exponent.astype(np.float32) + np.float32(QUANTILE_CENTRE)
    w = _horner(QUANTILE_COEFFICIENTS, w)
    w *= share
    return w


def _horner(coefficients: tuple[float, ...], x: Singles) -> Singles:
    value: Singles = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value *= x
        value += np.float32(coefficient)
    return value


@cache
def tail_table() -> Doubles:
    """Taylor coefficients of Q around multiples of `TAIL_SPACING`, [nodes, degree + 1].

    Each is the double nearest to the true coefficient, or the one next to it.
    """
    before, ctx.prec = ctx.prec, 160
    try:
        rows = [
            [float(ball) for ball in _taylor_balls(arb(node) * arb(TAIL_SPACING))]
            for node in range(TAIL_NODES)
        ]
    finally:
        ctx.prec = before
    return np.array(rows)


def _taylor_balls(centre: arb) -> list[arb]:
    """Q⁽ⁿ⁾(c)/n!: derivatives of the density are Hermite polynomials times the density."""
    density = (-centre * centre / 2).exp() / (2 * arb.pi()).sqrt()
    hermite, following = arb(1), centre
    row, factorial = [upper_tail(centre)], arb(1)
    for n in range(1, TAIL_DEGREE + 1):
        factorial *= n
        sign = -1 if n % 2 else 1
        row.append(sign * density * hermite / factorial)
        hermite, following = following, centre * following - n * hermite
    return row


def upper_tail(b: arb) -> arb:
    """Q(b) as a ball."""
    return (b / arb(2).sqrt()).erfc() / 2


def tail(b: Doubles) -> Doubles:
    """Q(b) for 0 ≤ b ≤ `TAIL_END`, within the relative error `TAIL_ERROR`."""
    node = np.rint(b / TAIL_SPACING).astype(np.intp)
    rest = b - node * TAIL_SPACING
    rows = tail_table()[node].T
    value: Doubles = rows[-1].copy()
    for row in rows[-2::-1]:
        value *= rest
        value += row
    return value
