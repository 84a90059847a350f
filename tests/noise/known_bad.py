"""Gaussian noise that floating-point attacks break: Box–Muller in float32, kept as a reference.

Two earlier samplers, without their keystream. The compiled one took coordinates i and i + 16 of
every 32 from one radius, the portable one i and i + n/2.
"""

import numpy as np

from tacit.audit.floating_point import Singles, Words, halves, lanes

_LOG = (-2.0, 0.99999976, -0.66668373, 0.5000415, -0.39913666)
_LOG += (0.33124784, -0.29904535, 0.28733698, -0.17444721)
_TWO_LOG_HALF = np.float32(-1.3862944)
_SINE = (1.5707964, -0.6459635, 0.07968003, -0.0046016579)
_COSINE = (0.99999994, -1.2336967, 0.25359493, -0.020398581)
_WIDE_COSINE = (0.99999994, -1.2336977, 0.25364742, -0.020804573, 0.00085483585)
_WIDE_SINE = (1.5707963, -0.64596277, 0.07968618, -0.0046689482, 0.00014928494)


def polynomial(coefficients: tuple[float, ...], x: Singles) -> Singles:
    value = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + np.float32(coefficient)
    return value


def compiled_pairs(radius_words: Words, angle_words: Words) -> tuple[Singles, Singles]:
    u = radius_words.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    bits = u.view(np.int32)
    exponent = (bits - np.int32(0x3F3504F3)) >> 23
    f = (bits - (exponent << 23)).view(np.float32) - np.float32(1)
    squares = exponent.astype(np.float32) * _TWO_LOG_HALF + polynomial(_LOG, f) * f
    radius = np.sqrt(np.maximum(squares, 0))
    x = ((angle_words << 2).view(np.int32) >> 2).astype(np.float32) * np.float32(2.0**-30)
    sine, cosine = polynomial(_SINE, x * x) * x, polynomial(_COSINE, x * x)
    turned = angle_words + np.uint32(0x20000000)
    odd = (turned & 0x40000000) != 0
    one, other = np.where(odd, sine, cosine), np.where(odd, cosine, sine)
    one = np.where((turned + np.uint32(0x40000000)) >> 31, -one, one)
    return radius * one, radius * np.where(turned >> 31, -other, other)


def portable_pairs(radius_words: Words, angle_words: Words) -> tuple[Singles, Singles]:
    signed = radius_words.view(np.int32).astype(np.float32)
    u = signed * np.float32(2.0**-31) + np.float32(2.0**-32)
    radius = np.copysign(np.sqrt(np.log(np.float32(1) / (u * u))), u)
    x = angle_words.view(np.int32).astype(np.float32) * np.float32(2.0**-31)
    return radius * polynomial(_WIDE_COSINE, x * x), radius * polynomial(_WIDE_SINE, x * x) * x


def compiled_release(total: Singles, scale: float, index: int) -> Singles:
    return _released(total, scale, index, compiled=True)


def portable_release(total: Singles, scale: float, index: int) -> Singles:
    return _released(total, scale, index, compiled=False)


def _released(total: Singles, scale: float, index: int, compiled: bool) -> Singles:
    one, other = (lanes if compiled else halves)(len(total))
    words = np.random.default_rng(index).integers(0, 2**32, (2, len(one)), dtype=np.uint32)
    made = (compiled_pairs if compiled else portable_pairs)(*words)
    noise = np.empty_like(total)
    noise[one], noise[other] = made
    return total + noise * np.float32(scale)
