"""Normal numbers from uniform words, in passes of torch.

Box and Muller on 32-bit words, so |z| reaches 6.66. Sine and cosine are polynomials, which take
fewer and shorter passes than torch's own. The compiled implementation in
`tacit/native/src/noise.cpp` takes other words for a pair, and the whole circle from an angle's
word: numbers of the same law, but not the same numbers. Nothing needs them to be: a run that goes
on with other kernels than it was started with never repeats a step under the same key.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

SAMPLER = "Box–Muller in single precision, version 7"
"""Names the numbers of a run in ledgers; change it whenever a bit of them changes, be it by a
function of theirs or by how they are addressed (`RandomSource.name`)."""

_UNIT = 2.0**-31
_HALF_UNIT = torch.tensor(2.0**-32, dtype=torch.float32, device="cpu")


class _Even:
    """A polynomial in x², of words that stand for x = word · 2⁻³¹."""

    def __init__(self, *coefficients: float) -> None:
        *rest, self._highest = coefficients
        self._rest = torch.tensor(rest, dtype=torch.float32, device="cpu").flip(0).unbind()

    def of(self, squares: Tensor, out: Tensor) -> Tensor:
        """Its values for words whose squares these are."""
        first, *rest = self._rest
        torch.add(first, squares, alpha=self._highest * _UNIT**2, out=out)
        for coefficient in rest:
            torch.addcmul(coefficient, out, squares, value=_UNIT**2, out=out)
        return out


_COSINE = _Even(0.99999994, -1.2336977, 0.25364742, -0.020804573, 0.00085483585)
"""cos(πx/2) for |x| ≤ 1, to 7e-8."""
_SINE = _Even(
    *(1.5707963 * _UNIT, -0.64596277 * _UNIT, 0.07968618 * _UNIT),
    *(-0.0046689482 * _UNIT, 0.00014928494 * _UNIT),
)
"""sin(πx/2) divided by the word, to 1e-8 in the sine."""


def normals(quarters: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Independent standard normal numbers from the bits of the first two of four rows.

    They come in two halves as long as a row, each as two factors: signed radii and, of angles
    within half a turn, first the cosines, then the sines. A word of the first row makes a radius
    with its sign, r² = -2 log(|word + ½| · 2⁻³¹), one of the second an angle, π · word · 2⁻³². Rows
    are of single precision; all are overwritten, and a half is gone when the next is asked for.
    """
    squares, directions, radii, angles = quarters.unbind()
    quarters[2:].copy_(quarters[:2].view(torch.int32))
    torch.add(_HALF_UNIT, radii, alpha=_UNIT, out=radii)
    torch.pow(radii, -2.0, out=squares).log_().sqrt_()
    torch.copysign(squares, radii, out=radii)
    torch.square(angles, out=squares)
    yield radii, _COSINE.of(squares, directions)
    yield radii, _SINE.of(squares, directions).mul_(angles)
