"""Normal numbers from uniform words: the definition that every implementation follows bit for bit.

Box and Muller on 32-bit words, so |z| reaches 6.7. Only operations that IEEE 754 rounds in one way
are used (no library logarithm, no fused products), so that the compiled implementation in
`tacit/native/src/noise.cpp`, on any processor and with any number of threads, gives the same bits.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

GROUP = 256
"""Numbers are made in groups of so many words, from sixteen blocks of the keystream."""

SAMPLER = "Box–Muller in single precision, version 4"
"""Names the numbers of a run in ledgers; change it whenever a bit of them changes, be it by the
function below or by how they are addressed (`RandomSource.name`)."""

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


def normals(words: Tensor, out: Tensor) -> None:
    """As many independent standard normal numbers as there are int32 words, a multiple of `GROUP`.

    They go to `out`, in single precision. The words of a group are laid out by their place within
    a block of sixteen: the words of the sixteen blocks at an even place are radii, those at the
    next place angles.
    """
    radii, angles = words.view(-1, 16, 8, 2).permute(3, 0, 2, 1).contiguous()
    radii = _radius(radii).view(torch.int32)
    x = (angles << 2).bitwise_right_shift_(2).float().mul_(2.0**-30)
    z = x * x
    sine, cosine = _polynomial(_SINE, z).mul_(x), _polynomial(_COSINE, z)
    _exchange_where_odd(angles, sine.view(torch.int32), cosine.view(torch.int32))
    signed = radii.bitwise_xor_(angles.bitwise_and_(-(1 << 31))).view(torch.float32)
    pairs = out.view(-1, 8, 2, 16)
    torch.mul(signed, cosine, out=pairs[:, :, 0])
    torch.mul(signed, sine, out=pairs[:, :, 1])


def _exchange_where_odd(quarters: Tensor, one: Tensor, other: Tensor) -> None:
    """Exchange two arrays in odd quarters of a turn, bit by bit: far faster than `where`."""
    exchanged = (quarters << 1).bitwise_right_shift_(31).bitwise_and_(one ^ other)
    one.bitwise_xor_(exchanged)
    other.bitwise_xor_(exchanged)


def _radius(words: Tensor) -> Tensor:
    """√(-2 log u) for u = (word + ½) / 2³², from u = m · 2ᵉ with m between √½ and √2."""
    u = words.view(torch.uint32).float().add_(0.5).mul_(2.0**-32)
    bits = u.view(torch.int32)
    exponent = (bits - 0x3F3504F3).bitwise_right_shift_(23)
    f = bits.sub_(exponent << 23).view(torch.float32).sub_(1)
    log = _polynomial(_LOG, f).mul_(f).add_(exponent.float().mul_(_TWO_LOG_HALF))
    np.sqrt(log.numpy(), out=log.numpy())  # torch's own is not always rounded as IEEE 754 says
    return log


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    total = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        total.add_(coefficient).mul_(x)
    return total.add_(coefficients[0])
