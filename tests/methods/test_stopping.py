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
