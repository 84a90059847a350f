"""Numbers are never rounded in our favour."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from tacit.report import values


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2.9994, "3.00"),
        (3.0, "3.00"),
        (3.0000001, "3.01"),
        (0.1, "0.10"),
        (0.0, "0.00"),
        (0.012341, "0.0124"),
        (1.00001e-7, "1.01e-7"),
        (9.999e-7, "1.00e-6"),
        (99.999, "100.00"),
        (1e300, "1.00e300"),
        (5e-324, "5.00e-324"),
        (8, "8.00"),
        (10**400, "∞"),
        (math.inf, "∞"),
        ("Infinity", "∞"),
        (math.nan, "—"),
        (None, "—"),
        (True, "—"),
    ],
)
def test_proven_epsilon_is_rounded_up(value: object, shown: str) -> None:
    assert values.proven(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.8374, "0.83"),
        (0.8399999, "0.83"),
        (2.0, "2.00"),
        (0.012349, "0.0123"),
        (-0.4, "0.00"),
        (-0.0, "0.00"),
        (math.inf, "∞"),
        (math.nan, "—"),
        (None, "—"),
    ],
)
def test_audited_epsilon_is_rounded_down(value: object, shown: str) -> None:
    assert values.audited(value) == shown


def test_a_claim_is_rounded_as_a_proof_so_that_the_two_can_be_compared() -> None:
    assert values.claimed(2.9312) == values.proven(2.9312) == "2.94"
    assert values.claimed(2.93121, 4) == values.proven(2.93121, 4) == "2.9313"


def test_shown_bounds_enclose_the_exact_value() -> None:
    for exponent in range(-12, 9):
        for digits in range(1, 400, 7):
            exact = f"{digits}.{digits * 7919 % 9973:04d}e{exponent}"
            assert Fraction(values.proven(float(exact))) >= Fraction(exact)
            assert Fraction(values.audited(float(exact))) <= Fraction(exact)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.97316, "97.31%"),
        (0.973199999, "97.31%"),
        (0.9731, "97.31%"),
        (0.29, "29.00%"),
        (1.0, "100.00%"),
        (0.99999, "99.99%"),
        (0, "0.00%"),
        (math.nan, "—"),
        (None, "—"),
    ],
)
def test_accuracy_is_rounded_down(value: object, shown: str) -> None:
    assert values.percent(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1e-5, "1e-5"), (1.0001e-5, "1.01e-5"), (1.5e-6, "1.5e-6"), (0.01, "0.01"), (0, "0")],
)
def test_delta_is_rounded_up_and_short(value: float, shown: str) -> None:
    assert values.delta(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.82, "820 ms"), (59.9, "59.9 s"), (59.97, "1 min 00 s"), (312.4, "5 min 12 s")],
)
def test_durations(value: float, shown: str) -> None:
    assert values.duration(value) == shown


def test_loss_is_rounded_up_and_diverged_loss_is_marked() -> None:
    assert values.loss(0.14321) == "0.1433"
    assert values.loss(math.nan) == "—"
    assert values.loss(math.inf) == "∞"


def test_the_growth_factor_bounds_the_exponential() -> None:
    assert values.growth(0.0) == "1.00"
    assert values.growth(2.9994) == "20.08"
    assert values.growth(1000.0) is None


def test_unprintable_characters_leave_a_mark() -> None:
    assert values.clean("a\x00b\ud800c\n\t") == "a\ufffdb\ufffdc\n\t"
