"""The error bounds that noise rests on, recomputed in ball arithmetic.

Nothing here is sampled: every interval of arguments is enclosed. The steps are those of
docs/proofs/precision.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from flint import arb, ctx

from tacit.noise import quantile
from tacit.noise.rounding import Grid

LOG_TWO = arb(2).log()
UNIT = arb(2) ** -24
"""Relative error of one operation in single precision, by rounding to nearest."""


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    before, ctx.prec = ctx.prec, 64
    yield
    ctx.prec = before


def polynomial(coefficients: tuple[float, ...], x: arb) -> arb:
    value = arb(0)
    for coefficient in reversed(coefficients):
        value = value * x + arb(coefficient)
    return value


def derivative(coefficients: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(n * c for n, c in enumerate(coefficients))[1:]


def intervals(low: arb, high: arb, pieces: int) -> Iterator[tuple[arb, arb]]:
    """Middles and balls that cover [low, high]."""
    half = (high - low) / (2 * pieces)
    for piece in range(pieces):
        middle = low + half * (2 * piece + 1)
        yield middle, arb(middle.mid(), half.abs_upper())


def largest(values: Iterator[arb]) -> arb:
    found = arb(0)
    for value in values:
        found = max(found, abs(value).upper())
    return found


def rounded_horner(coefficients: tuple[float, ...], x: arb, x_error: arb) -> tuple[arb, arb]:
    """A polynomial's value on a ball, and how far one in single precision can be from the exact
    polynomial of the exact argument: each product and each sum is off by `UNIT` of its size."""
    value, error = arb(coefficients[-1]), arb(0)
    for coefficient in coefficients[-2::-1]:
        product = value * x
        product_error = error * (abs(x) + x_error) + abs(value) * x_error
        product_error += UNIT * (abs(product) + product_error)
        value = product + arb(coefficient)
        error = product_error + UNIT * (abs(value) + product_error)
        error = error.upper()
    return value, error


def log_error() -> arb:
    """sup |f·q(f) + log₂(1 + f)| over the arguments of the logarithm's polynomial."""

    def enclosed() -> Iterator[arb]:
        low, high = arb(0.5).sqrt() - 1 - arb(2) ** -20, arb(2).sqrt() - 1 + arb(2) ** -20
        shifted = (0.0, *quantile.LOG_COEFFICIENTS)
        for middle, ball in intervals(low, high, 4000):
            slope = polynomial(derivative(shifted), ball) + 1 / ((1 + ball) * LOG_TWO)
            value = polynomial(shifted, middle) + (1 + middle).log() / LOG_TWO
            yield value + slope * (ball - middle)

    return largest(enclosed())


def fit_error() -> arb:
    """sup |(1 − 2u)·P(w) − z| with u = Q(z), over all z that the approximation is used for."""
    coefficients, centre = quantile.QUANTILE_COEFFICIENTS, arb(quantile.QUANTILE_CENTRE)
    slopes = derivative(coefficients)
    end = (arb(2).sqrt() * (2 * arb(quantile.LOWEST) * arb(2) ** -32).erfcinv()).upper()

    def parts(z: arb) -> tuple[arb, arb, arb]:
        u = quantile.upper_tail(z)
        w = -(4 * u * (1 - u)).log() / LOG_TWO - centre
        return u, 1 - 2 * u, w

    def enclosed() -> Iterator[arb]:
        for middle, ball in intervals(arb(0), end, 30_000):
            u, share, w = parts(ball)
            density = (-ball * ball / 2).exp() / (2 * arb.pi()).sqrt()
            slope = 2 * density * polynomial(coefficients, w) - 1
            slope += share * polynomial(slopes, w) * density * (1 / u - 1 / (1 - u)) / LOG_TWO
            _, share, w = parts(middle)
            yield share * polynomial(coefficients, w) - middle + slope * (ball - middle)

    return largest(enclosed())


def folded_words() -> Iterator[arb]:
    """Balls of probabilities that cover every folded word for which Φ⁻¹ is approximated."""
    edge = quantile.LOWEST
    while edge < 2**31:
        for _, word in intervals(arb(edge), arb(2 * edge), 64):
            yield (word + arb(0.5)) * arb(2) ** -32
        edge *= 2


def rounding_error(u: arb, approximation_of_log: arb) -> arb:
    """How far single precision can be from the exact expression, for a ball of probabilities."""
    z = quantile_of(u)
    density = (-z * z / 2).exp() / (2 * arb.pi()).sqrt()
    # The word stands for an interval; conversion to single precision and a sum round it.
    off = arb(2) ** -33 + 2 * UNIT * (1 + UNIT) * u
    moved = off / density.lower()
    # From here on the rounded argument is exact; (1 - u) and the product with it are rounded.
    product_off = (1 + UNIT) ** 2 - 1
    product = 4 * u * (1 - u)
    f = mantissa(product) - 1
    q, q_error = rounded_horner(quantile.LOG_COEFFICIENTS, f, arb(0))
    term = abs(q * f)
    term_error = q_error * abs(f) + UNIT * (term + q_error * abs(f))
    w = -product.log() / LOG_TWO - arb(quantile.QUANTILE_CENTRE)
    w_error = term_error + approximation_of_log + product_off * (1 + product_off) / LOG_TWO
    w_error = (w_error + UNIT * (abs(w) + w_error)).upper()
    p, p_error = rounded_horner(quantile.QUANTILE_COEFFICIENTS, w, arb(0))
    around = arb(w.mid(), (w.rad() + w_error).upper())
    p_error += abs(polynomial(derivative(quantile.QUANTILE_COEFFICIENTS), around)) * w_error
    share = 1 - 2 * u
    return moved + share * p_error + 2 * UNIT * share * (abs(p) + p_error)


def mantissa(product: arb) -> arb:
    """The ball that 1 + f lies in; products are scaled into [√½, √2] by powers of two."""
    for exponent in range(-14, 1):
        scaled = product * arb(2) ** -exponent
        if scaled > arb(0.5).sqrt() and scaled < arb(2).sqrt():
            return scaled
    return (arb(0.5).sqrt() - UNIT).union(arb(2).sqrt() + UNIT)


def quantile_of(u: arb) -> arb:
    """|Φ⁻¹(u)| of a ball: a decreasing function, so the ends enclose it."""
    low, high = u.lower(), u.upper()
    far = arb(2).sqrt() * (2 * low).erfcinv()
    near = arb(2).sqrt() * (2 * high).erfcinv() if high < 0.5 else arb(0)
    return near.union(far)


def test_the_bound_on_the_quantile_function_holds_for_every_word() -> None:
    log_off, fit = log_error(), fit_error()
    constant, slope = arb(quantile.QUANTILE_ERROR), arb(quantile.QUANTILE_SLOPE)
    closest = arb(1)
    for u in folded_words():
        total = (fit + rounding_error(u, log_off)).upper()
        bound = constant + slope * quantile_of(u).lower()
        assert total < bound
        closest = min(closest, (1 - total / bound).lower())
    assert closest < 0.2  # The bound is not far from what can be proven.


def test_the_margins_of_single_precision_cover_the_bound_and_every_rounding() -> None:
    """|v − (fraction + ratio·z)| and the rounding of the comparison itself, for both ends of the
    ratios and all sizes of z that are approximated."""
    for scale in (0.5, 0.7, 1 - 2**-24):
        grid = Grid.of(scale)
        limit, slope = arb(float(np.float32(grid.limit))), arb(float(np.float32(grid.slope)))
        ratio = arb(grid.ratio)
        for i in range(400):
            z = arb(i) / 100
            error = arb(quantile.QUANTILE_ERROR) + arb(quantile.QUANTILE_SLOPE) * z
            seen = z + error
            product = ratio * seen
            off = ratio * error + UNIT * product + UNIT * (product * (1 + UNIT) + arb(0.5))
            off += arb(2) ** -26
            compared = (limit - slope * (z - error) * (1 - UNIT) ** 2) / (1 - UNIT)
            assert compared + off < arb(0.5)


def test_the_bound_on_the_tail_in_double_precision_holds() -> None:
    """Taylor's remainder, rounding of coefficients and of Horner's rule, and of the argument."""
    ctx.prec = 200
    unit, table = arb(2) ** -53, quantile.tail_table()
    half = arb(quantile.TAIL_SPACING) / 2 * (1 + 4 * unit)
    degree = quantile.TAIL_DEGREE
    worst = arb(0)
    for node in range(quantile.TAIL_NODES):
        centre = arb(node) * arb(quantile.TAIL_SPACING)
        near, far = centre - half, centre + half
        least = quantile.upper_tail(far)
        remainder = derivative_bound(degree + 1, near, far) * half ** (degree + 1)
        exact = quantile._taylor_balls(centre)
        off = remainder / arb.fac_ui(degree + 1)
        for n, (rounded, true) in enumerate(zip(table[node], exact, strict=True)):
            size = abs(arb(float(rounded))) * half**n
            off += abs(arb(float(rounded)) - true) * half**n
            off += size * ((1 + unit) ** (2 * n + 2) - 1)
        density = (-near * near / 2).exp() / (2 * arb.pi()).sqrt()
        off += density * far * arb(2) ** -51 * (1 + unit)
        # The remainder's argument, b − node·spacing, is exact by Sterbenz's lemma.
        worst = max(worst, (off / least).upper())
    assert worst < quantile.TAIL_ERROR
    assert worst > quantile.TAIL_ERROR / 16


def derivative_bound(order: int, near: arb, far: arb) -> arb:
    """sup |Q⁽ⁿ⁾| over an interval: Hermite polynomials by their absolute coefficients."""
    coefficients = [1]
    before: list[int] = []
    for n in range(order - 1):
        shifted = [0, *coefficients]
        less = [n * c for c in before] + [0] * (len(shifted) - len(before))
        before, coefficients = coefficients, [a + b for a, b in zip(shifted, less, strict=True)]
    largest = max(abs(near).upper(), abs(far).upper())
    value = sum((arb(c) * largest**i for i, c in enumerate(coefficients)), arb(0))
    smallest = arb(0) if near < 0 else near
    return value * (-smallest * smallest / 2).exp() / (2 * arb.pi()).sqrt()
