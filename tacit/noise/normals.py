"""Normal numbers from uniform words, by torch's own functions.

Box and Muller on 32-bit words, so |z| reaches 6.7. The compiled implementation in
`tacit/native/src/noise.cpp` takes other words of a group for a pair, and its own logarithm, sine
and cosine: numbers of the same law, but not the same numbers. Nothing needs them to be: a run that
goes on with other kernels than it was started with never repeats a step under the same key.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

GROUP = 256
"""Numbers are made in groups of so many words, from sixteen blocks of the keystream."""

SAMPLER = "Box–Muller in single precision, version 5"
"""Names the numbers of a run in ledgers; change it whenever a bit of them changes, be it by a
function of theirs or by how they are addressed (`RandomSource.name`)."""


def normals(words: Tensor, out: Tensor) -> None:
    """As many independent standard normal numbers as there are int32 words, a multiple of `GROUP`.

    They go to `out`, in single precision. The first half of a group's words are radii, the second
    half angles.
    """
    radii, angles = words.view(-1, 2, GROUP // 2).unbind(1)
    radius = radii.view(torch.uint32).float().mul_(2.0**-32).add_(2.0**-33)
    radius.log_().mul_(-2).sqrt_()
    angle = angles.float().mul_(math.pi * 2.0**-31)
    first, second = out.view(-1, 2, GROUP // 2).unbind(1)
    torch.mul(radius, angle.cos(), out=first)
    torch.mul(radius, angle.sin_(), out=second)
