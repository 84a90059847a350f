"""ROC curves, areas under them and rates, against closed forms and counting by hand."""

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from tacit.audit.scores import Scores, proportion
from tacit.errors import ArgumentError


def gaussian_scores(mu: float, coins: int, seed: int) -> Scores:
    generator = np.random.default_rng(seed)
    heads = generator.random(coins) < 0.5
    return Scores(generator.normal(size=coins) + mu * heads, heads)


def test_area_is_the_share_of_pairs_in_the_right_order() -> None:
    scores = Scores(np.array([3.0, 1.0, 2.0, 0.0]), np.array([True, False, True, False]))
    tied = Scores(np.array([3.0, 2.0, 2.0, 0.0]), np.array([True, False, True, False]))
    assert scores.auc(0.95).estimate == 1.0
    assert tied.auc(0.95).estimate == pytest.approx(3.5 / 4)


def test_intervals_of_the_area_cover_the_truth_as_often_as_they_say() -> None:
    truth = float(ndtr(1 / np.sqrt(2)))
    intervals = [gaussian_scores(1.0, 200, seed).auc(0.9) for seed in range(300)]
    covered = sum(one.low <= truth <= one.high for one in intervals)
    assert binom.ppf(0.001, 300, 0.9) <= covered <= binom.ppf(0.999, 300, 0.9)


def test_area_of_separated_scores_is_one_with_an_honest_interval() -> None:
    area = Scores(np.arange(20.0), np.arange(20) >= 10).auc(0.95)
    assert area.estimate == area.high == 1.0
    assert area.low == pytest.approx(proportion(10, 10, 0.95)[0])


def test_true_positives_at_small_rates_match_the_normal_curve() -> None:
    scores = gaussian_scores(1.0, 400_000, 7)
    for rate in (0.001, 0.01):
        found = scores.true_positives_at(rate, 0.999)
        assert found.low <= ndtr(ndtri(rate) + 1) <= found.high


def test_true_positives_never_exceed_the_allowed_false_ones() -> None:
    scores = Scores(np.array([5.0, 4.0, 4.0, 1.0]), np.array([True, True, False, False]))
    assert scores.true_positives_at(0.0, 0.95).estimate == 0.5
    assert scores.true_positives_at(0.5, 0.95).estimate == 1.0


def test_roc_curve_runs_from_corner_to_corner_and_never_falls() -> None:
    false, true = gaussian_scores(0.5, 3000, 1).roc()
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert (np.diff(false) >= 0).all() and (np.diff(true) >= 0).all()
    assert len(false) < 500


def test_scores_of_another_length_than_the_coins_are_refused() -> None:
    with pytest.raises(ArgumentError, match="one score"):
        Scores(np.zeros(3), np.zeros(2, dtype=bool))


def test_scores_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ArgumentError, match="not numbers"):
        Scores(np.array([np.nan]), np.array([True]))


def test_a_curve_needs_coins_of_both_kinds() -> None:
    with pytest.raises(ArgumentError, match="0 tails"):
        Scores(np.zeros(3), np.ones(3, dtype=bool)).roc()
