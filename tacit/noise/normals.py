"""Normal numbers from uniform words: the definition that every implementation follows bit for bit.

Box and Muller on 32-bit words, so |z| reaches 6.7. Only operations that IEEE 754 rounds in one way
are used (no library logarithm, no fused products), so that the compiled implementation in
`tacit/native/src/noise.cpp`, on any processor and with any number of threads, gives the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GROUP = 256
"""Numbers are made in groups of so many words, from sixteen blocks of the keystream."""

SAMPLER = "Box–Muller in single precision, version 2"
"""Names the numbers of a run in ledgers; change it whenever a bit of them changes, be it by the
function below or by how they are addressed (`RandomSource.name`)."""

_Floats = NDArray[np.float32]
_Words = NDArray[np.uint32]

_LOG = (
    *(-2.0, 0.99999976, -0.66668373, 0.5000415, -0.39913666),
    *(0.33124784, -0.29904535, 0.28733698, -0.17444721),
)
"""-2 log(1 + f) / f for √½ ≤ 1 + f < √2, good to half a unit in the last place."""
_TWO_LOG_HALF = -1.3862944
_SINE = (1.5707964, -0.6459635, 0.07968003, -0.0046016579)
"""sin(πx/2) / x in powers of x² for |x| ≤ ½."""
_COSINE = (0.99999994, -1.2336967, 0.25359493, -0.020398581)
"""cos(πx/2) in powers of x² for |x| ≤ ½."""


def normals(words: _Words) -> _Floats:
    """As many independent standard normal numbers as there are words, a multiple of `GROUP`.

    The words of a group are laid out by their place within a block of sixteen: the words of the
    sixteen blocks at an even place are radii, those at the next place angles.
    """
    columns = words.reshape(-1, 16, 16).transpose(0, 2, 1).reshape(-1, 8, 2, 16)
    out = np.empty(columns.shape, np.float32)
    radius, angle = _radius(columns[:, :, 0]), np.ascontiguousarray(columns[:, :, 1])
    x = ((angle << np.uint32(2)).view(np.int32) >> 2).astype(np.float32)
    x *= np.float32(2.0**-30)
    z = x * x
    sine, cosine = _polynomial(_SINE, z), _polynomial(_COSINE, z)
    sine *= x
    signed = (radius.view(np.uint32) ^ (angle & np.uint32(0x80000000))).view(np.float32)
    swapped = (angle & np.uint32(0x40000000)).astype(bool)
    np.multiply(signed, np.where(swapped, sine, cosine), out=out[:, :, 0])
    np.multiply(signed, np.where(swapped, cosine, sine), out=out[:, :, 1])
    return out.reshape(-1)


def _radius(words: _Words) -> _Floats:
    """√(-2 log u) for u = (word + ½) / 2³², from u = m · 2ᵉ with m between √½ and √2."""
    u = words.astype(np.float32)
    u += np.float32(0.5)
    u *= np.float32(2.0**-32)
    bits = u.view(np.int32)
    exponent = (bits - np.int32(0x3F3504F3)) >> 23
    f = (bits - (exponent << 23)).view(np.float32) - np.float32(1)
    log = _polynomial(_LOG, f)
    log *= f
    log += exponent.astype(np.float32) * np.float32(_TWO_LOG_HALF)
    return np.sqrt(log, out=log)


def _polynomial(coefficients: tuple[float, ...], x: _Floats) -> _Floats:
    total = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total *= x
        total += np.float32(coefficient)
    return total
