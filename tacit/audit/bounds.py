"""Lower bounds on ε from the scores of an attack, each with its confidence and what it assumes.

Every bound chooses how to attack (a threshold, how many guesses to make) on one half of the coins
and concludes from the other half, so the choice costs no confidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import beta, binom

from tacit.audit.scores import Array, Scores, above, below
from tacit.errors import ArgumentError

_CANDIDATES = 300
_CAUTION = 20.0  # choices are made at a smaller error, or they would follow lucky counts
MOST_EPSILON = 100.0  # what is shown never exceeds this
_NOISE_RANGE = 8.0
_NOISE_STEP = 0.004
INDEPENDENT = "the coins' scores are independent of each other"
FAIR = "the coins are fair and independent; scores may depend on each other"


@dataclass(frozen=True)
class Bound:
    """ε is at least this, unless an event happened that the confidence speaks of."""

    name: str
    epsilon: float
    assumes: str
    details: dict[str, float]


def clopper_pearson(scores: Scores, delta: float, confidence: float) -> Bound:
    """ε ≥ ln((TPR − δ)/FPR) or ln((TNR − δ)/FNR), whichever seems larger on the first half.

    Guarantee: for independent scores the bound exceeds the true ε with probability at most
    1 − confidence (Clopper and Pearson 1934; Jagielski, Ullman and Oprea 2020). Each rate gets
    half of the error.
    """
    choosing, concluding = _halves(scores)
    error = (1 - confidence) / 2
    threshold, ups = _best_threshold(choosing, delta, error / _CAUTION)
    true, false = (int(n[0]) for n in concluding.positives(np.array([threshold])))
    ones, zeros = len(concluding.members), len(concluding.others)
    if ups:
        found = _log_ratio(below(true, ones, error) - delta, above(false, zeros, error))
    else:
        found = _log_ratio(
            below(zeros - false, zeros, error) - delta, above(ones - true, ones, error)
        )
    details = {"false_positives": false / zeros, "true_positives": true / ones}
    return Bound("Clopper–Pearson", found, INDEPENDENT, details)


def one_run(scores: Scores, delta: float, confidence: float) -> Bound:
    """The bound of Steinke, Nasr and Jagielski (2023): how many coins can be guessed right.

    Guarantee: if every coin was fair and independent of the others, the bound exceeds the true ε
    with probability at most 1 − confidence, however the scores depend on each other, so a single
    run with many coins is enough. Coins with middling scores are not guessed.
    """
    choosing, concluding = _halves(scores)
    up, down = _best_guesses(choosing, delta, 1 - confidence)
    count = len(concluding)
    most, least = round(up * count), round(down * count)
    order = np.argsort(concluding.values, kind="stable")
    right = int(concluding.heads[order[count - most :]].sum())
    right += int((~concluding.heads[order[:least]]).sum())
    guesses = most + least

    def surprising(epsilon: float) -> bool:
        return guess_probability(count, guesses, right, epsilon, delta) < 1 - confidence

    found = _largest(surprising)
    return Bound("one run", found, FAIR, {"guesses": guesses, "right": right, "coins": count})


def guess_probability(coins: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The largest probability that an (ε, δ)-private mechanism allows for so many right guesses.

    With W binomial(guesses, e^ε/(1 + e^ε)): P[W ≥ right] + 2·coins·δ·max_i P[right − i ≤ W <
    right]/i.
    """
    chance = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, chance))
    if delta == 0 or right == 0:
        return min(1.0, tail)
    reach = np.arange(1, right + 1)
    less = binom.cdf(right - 1, guesses, chance) - binom.cdf(right - 1 - reach, guesses, chance)
    return min(1.0, tail + 2 * coins * delta * float(np.max(less / reach)))


def fitted_noise(
    scores: Scores,
    confidence: float,
    allowed: Callable[[float, float], float],
    epsilon_at: Callable[[float], float],
) -> Bound:
    """ε of the most noise, as a multiple of the promised noise, that the attack leaves possible.

    `allowed(noise, fpr)` is the highest true positive rate that the mechanism with this multiple
    of its noise allows, and `epsilon_at(noise)` its ε. Where the mechanism is Gaussian this is
    the Gaussian-DP bound (Nasr et al. 2023).

    Guarantee: for independent scores, and if the mechanism is the promised one but for the size
    of its noise, the bound exceeds the true ε with probability at most 1 − confidence.
    """
    choosing, concluding = _halves(scores)
    error = (1 - confidence) / 2
    threshold = _most_apart(choosing, error / _CAUTION)
    true, false = (int(n[0]) for n in concluding.positives(np.array([threshold])))
    low_true = below(true, len(concluding.members), error)
    high_false = above(false, len(concluding.others), error)
    assumes = f"{INDEPENDENT}; the mechanism is the promised one but for the size of its noise"
    least, most = 1 / _NOISE_RANGE, _NOISE_RANGE
    if low_true <= high_false or allowed(most, high_false) >= low_true:
        return Bound("fitted noise", 0.0, assumes, {})
    if allowed(least, high_false) < low_true:
        return Bound(
            "fitted noise", min(epsilon_at(least), MOST_EPSILON), assumes, {"noise": least}
        )
    while most / least > 1 + _NOISE_STEP:
        middle = math.sqrt(most * least)
        if allowed(middle, high_false) < low_true:
            most = middle
        else:
            least = middle
    return Bound("fitted noise", min(epsilon_at(most), MOST_EPSILON), assumes, {"noise": most})


def _halves(scores: Scores) -> tuple[Scores, Scores]:
    halves = scores.halves()
    fewest = min(min(len(half.members), len(half.others)) for half in halves)
    if fewest < 2:
        raise ArgumentError(
            f"{len(scores)} coins are too few: each half needs two heads and two tails"
        )
    return halves


def _candidates(scores: Scores) -> Array:
    """Thresholds worth trying: few false positives, few false negatives, and all between."""
    everyone = np.sort(scores.values)
    ranks = np.geomspace(1, len(everyone), _CANDIDATES).astype(np.int64) - 1
    places = np.unique(np.concatenate((ranks, len(everyone) - 1 - ranks)))
    return np.asarray(everyone[places])


def _best_threshold(scores: Scores, delta: float, error: float) -> tuple[float, bool]:
    """The threshold, and whether positives or negatives tell more."""
    thresholds = _candidates(scores)
    true, false = scores.positives(thresholds)
    ones, zeros = len(scores.members), len(scores.others)
    ups = _ratios(_below(true, ones, error) - delta, _above(false, zeros, error))
    downs = _ratios(_below(zeros - false, zeros, error) - delta, _above(ones - true, ones, error))
    if ups.max() >= downs.max():
        return float(thresholds[ups.argmax()]), True
    return float(thresholds[downs.argmax()]), False


def _most_apart(scores: Scores, error: float) -> float:
    """The threshold at which a Gaussian pair would be told to lie furthest apart."""
    thresholds = _candidates(scores)
    true, false = scores.positives(thresholds)
    apart = ndtri(_below(true, len(scores.members), error)) - ndtri(
        _above(false, len(scores.others), error)
    )
    return float(thresholds[np.nan_to_num(apart, nan=-np.inf).argmax()])


def _best_guesses(scores: Scores, delta: float, error: float) -> tuple[float, float]:
    """Shares of the coins to call heads and tails, those with the most extreme scores.

    δ can give away some coins; about 4·coins·δ/error of the right guesses then prove nothing.
    """
    count = len(scores)
    sizes = np.unique(np.concatenate(([0], np.geomspace(1, count // 2, 40)))).astype(np.int64)
    order = np.argsort(scores.values, kind="stable")
    heads = np.concatenate(([0], np.cumsum(scores.heads[order[::-1]])))[sizes]
    tails = np.concatenate(([0], np.cumsum(~scores.heads[order])))[sizes]
    guesses = np.maximum(sizes[:, None] + sizes[None, :], 1)
    right = heads[:, None] + tails[None, :] - round(4 * count * delta / error)
    chance = _below(np.maximum(right, 0), guesses, error / _CAUTION)
    up, down = np.unravel_index(int(np.argmax(chance)), chance.shape)
    return float(sizes[up] / count), float(sizes[down] / count)


def _below(successes: NDArray[np.int64], trials: NDArray[np.int64] | int, error: float) -> Array:
    found = beta.ppf(error, np.maximum(successes, 1), trials - successes + 1)
    return np.asarray(np.where(successes > 0, found, 0.0))


def _above(successes: NDArray[np.int64], trials: int, error: float) -> Array:
    found = beta.ppf(1 - error, successes + 1, np.maximum(trials - successes, 1))
    return np.asarray(np.where(successes < trials, found, 1.0))


def _ratios(upper: Array, lower: Array) -> Array:
    return np.asarray(np.maximum(upper, 1e-300) / lower)


def _log_ratio(upper: float, lower: float) -> float:
    return max(0.0, math.log(upper / lower)) if upper > 0 else 0.0


def _largest(holds: Callable[[float], bool]) -> float:
    """The largest ε for which a decreasing property holds, from below."""
    if not holds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while holds(high):
        low, high = high, 2 * high
        if high > MOST_EPSILON:
            return low
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
