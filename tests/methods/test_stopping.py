"""Early stopping by the spread of activations."""

import numpy as np
import pytest

from tacit.methods.stopping import SlopeRule, StoppingRule, TrendRule


def test_a_level_spread_raises_a_flag_after_a_window() -> None:
    rising = [float(value) for value in range(10)]
    level = [9.0 + 1e-4 * value for value in range(10)]
    rule = SlopeRule(length=5, threshold=1e-3)
    assert rule.flags(rising) == []
    assert rule.flags(rising + level) == [15, 20]


def test_a_falling_spread_is_not_level() -> None:
    falling = [1.0 - 0.1 * value for value in range(8)]
    assert SlopeRule(length=3, threshold=0.05).flags(falling) == []
    assert SlopeRule(length=3, threshold=0.2).flags(falling) == [4, 7]


def test_a_straight_line_raises_a_flag_where_a_curve_does_not() -> None:
    epochs = np.arange(30)
    curve, line = np.sqrt(epochs), 0.3 * epochs
    rule = TrendRule(length=5, tolerance=1e-3)
    assert rule.flags(list(curve[:12])) == []
    assert rule.flags(list(line))[0] == 6


def test_shorter_windows_and_wider_thresholds_raise_more_flags() -> None:
    generator = np.random.Generator(np.random.PCG64(0))
    spread = list(1 - np.exp(-np.arange(100) / 15) + 0.002 * generator.standard_normal(100))
    counts = [
        len(SlopeRule(length, threshold).flags(spread))
        for length, threshold in ((3, 1e-3), (10, 1e-3), (10, 1e-4))
    ]
    assert counts[0] > counts[1] >= counts[2]


@pytest.mark.parametrize("rule", [SlopeRule(5, 1.0), TrendRule(5, 1.0)])
def test_no_flag_before_a_window_has_passed(rule: StoppingRule) -> None:
    assert rule.flags([]) == rule.flags([1.0] * 5) == []


def test_the_papers_thresholds_lie_within_the_noise_of_what_they_are_compared_with() -> None:
    """Spread of pure noise over 50,000 vectors of 50 elements an epoch, C = 0.5: it is level from
    the start, and flags go up by chance, as docs/proofs/sanitization.md says."""
    generator = np.random.Generator(np.random.PCG64(1))
    records, width, epochs = 50_000, 50, 250
    deviation = 0.5 * np.sqrt(width)
    spread = [
        float(deviation * np.sqrt(generator.chisquare(width - 1, records) / (width - 1)).mean())
        for _ in range(epochs)
    ]
    slopes = [(spread[i] - spread[i - 10]) / 10 for i in range(10, epochs)]
    assert np.std(slopes) == pytest.approx(2.3e-4, rel=0.15)
    assert np.mean(np.abs(slopes) <= 1.2e-4) == pytest.approx(0.4, abs=0.1)
    flagged = len(TrendRule(length=5, tolerance=2e-5).flags(spread)) / epochs
    assert flagged == pytest.approx(0.028, abs=0.02)


def test_lines_of_the_windows_that_are_compared() -> None:
    spread = [1.0, 2.0, 2.5, 2.75]
    chords = SlopeRule(length=2, threshold=0.1).lines(spread)
    assert chords == [(1, 1.0, 3, 2.5), (2, 2.0, 4, 2.75)]
    fitted = TrendRule(length=3, tolerance=0.1).lines([0.0, 1.0, 2.0, 5.0])
    assert fitted[0] == pytest.approx((1, 0.0, 3, 2.0))
    assert fitted[1] == pytest.approx((2, 8 / 3 - 2, 4, 8 / 3 + 2))
    assert SlopeRule(length=9, threshold=0.1).lines(spread) == []


def test_rules_around_one_have_other_windows_and_limits() -> None:
    around = SlopeRule(length=10, threshold=1e-3).around()
    assert list(around)[:2] == ["window 5, slope 0.0001", "window 5, slope 0.001"]
    assert around["window 10, slope 0.001"] == SlopeRule(10, 1e-3)
    assert around["window 20, slope 0.01"].length == 20
    shortest = TrendRule(length=2, tolerance=1e-3).around()
    assert [rule.length for rule in shortest.values()] == [2, 2, 2, 4, 4, 4]
