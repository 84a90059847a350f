"""Floating-point attacks on noise: published distinguishers, played as a game.

One of two neighbouring sums is released with Gaussian noise of a public scale, and the attacker
says which. In exact arithmetic the guarantee bounds how often that succeeds; an implementation
whose released *bits* depend on the sum in other ways is caught by counting. Against exactly rounded
noise (docs/proofs/precision.md) the attacks below can do no better than chance.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr
from torch import Tensor

from tacit.audit.protocol import Played, Progress
from tacit.audit.scores import Scores
from tacit.noise.source import RandomSource
from tacit.privacy import events
from tacit.privacy.relations import Relation

Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]
Words = NDArray[np.uint32]
Release = Callable[[Singles, float, int], Singles]
"""The mechanism under test: a sum, the scale of its noise, and an index that names the release."""
Score = Callable[[Singles, Singles, float], float]
"""How well a released vector fits a candidate sum, given the scale; higher fits better."""
Pairs = Callable[[int], tuple[NDArray[np.intp], NDArray[np.intp]]]
Sampler = Callable[[Words, Words], tuple[Singles, Singles]]
"""Box–Muller: words for the radius and for the angle become two normal numbers."""

COORDINATES = 1024
EPSILON, DELTA = 1.0, 1e-5
_SMALL_RADIUS = 0.05


def gaussian_scale(epsilon: float = EPSILON, delta: float = DELTA) -> float:
    """The least noise for sensitivity 1, by the exact formula of Balle and Wang (2018)."""

    def excess(scale: float) -> float:
        shift, width = 0.5 / scale, epsilon * scale
        return float(ndtr(shift - width) - math.exp(epsilon) * ndtr(-shift - width)) - delta

    return float(brentq(excess, 0.1, 1000.0))


def neighbours(generator: np.random.Generator) -> tuple[Singles, Singles]:
    """No record, and one record of norm 1 that is spread over all coordinates."""
    signs = generator.choice([-1.0, 1.0], COORDINATES)
    return np.zeros(COORDINATES, np.float32), np.float32(signs / math.sqrt(COORDINATES))


def current_release(total: Singles, scale: float, index: int) -> Singles:
    """What `RandomSource.perturb_` releases, under a fresh key."""
    vector, ends = torch.from_numpy(total.copy()), [len(total)]
    source = RandomSource.from_seed(index)
    return np.asarray(source.perturb_(vector, "attack", 0, ends, [scale], 1.0).numpy())


def lanes(count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Coordinates i and i + 16 of every 32 share a radius."""
    rows = np.arange(count - count % 32).reshape(-1, 32)
    return rows[:, :16].ravel(), rows[:, 16:].ravel()


def halves(count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Coordinates i and i + n/2 share a radius; n is rounded up to a multiple of 32."""
    apart = 16 * -(-count // 32)
    first = np.arange(count - apart)
    return first, first + apart


def radius_lattice(pairs: Pairs, power: float, steps: float) -> Score:
    """Exploits that both numbers of a Box–Muller pair share one radius, from a coarse uniform.

    Near 1 a float32 uniform moves in steps of 2⁻²⁴, so for the right sum exp(−r²/2)·2²⁴ is almost
    an integer wherever r² is small; for a wrong sum it is not. A variant of the attack of Jin et
    al. (2021), "Are we there yet? Timing and floating-point attacks on differential privacy
    systems", that needs no search.

    Args:
        pairs: Which coordinates share a radius.
        power: exp(power·r²) is the number that lies on a lattice,
        steps: which has so many points per unit.
    """

    def score(released: Singles, candidate: Singles, scale: float) -> float:
        z = (released.astype(np.float64) - candidate) / scale
        one, other = pairs(len(z))
        squares = z[one] ** 2 + z[other] ** 2
        places = np.exp(power * squares[squares < _SMALL_RADIUS]) * steps
        return float(np.cos(2 * math.pi * places).sum())

    return score


def possible_values(released: Singles, candidate: Singles, scale: float) -> float:
    """Exploits that some floats cannot be the sum of the candidate and float32 noise.

    Mironov (2012), "On significance of the least significant bits for differential privacy": the
    noise is a float32 multiple fl(scale·z), and such products leave out many floats, so a result
    that no z explains rules the sum out. Minus the number of coordinates without explanation.
    """
    noise = released.astype(np.float64) - candidate
    guess = np.float32(noise / np.float32(scale))
    explained = np.zeros(len(released), dtype=bool)
    for direction in (-np.inf, np.inf):
        z = guess.copy()
        for _ in range(3):
            explained |= candidate + np.float32(scale) * z == released
            z = np.nextafter(z, np.float32(direction))
    return -float((~explained).sum())


def precision(released: Singles, candidate: Singles, scale: float) -> float:
    """Exploits that the precision of a result tells how large the numbers were that made it.

    Haney et al. (2022), "Precision-based attacks and interval refining": if a result is much
    smaller than the sum, noise and sum cancelled, and the result is a multiple of half a unit in
    the sum's last place. The log-likelihood ratio against results of full precision.
    """
    unit = np.spacing(np.abs(candidate)).astype(np.float64) / 2
    bits = np.floor(np.log2(unit / np.spacing(np.abs(released))))
    told = (candidate != 0) & (released != 0) & (bits > 0)
    multiples = released[told].astype(np.float64) / unit[told]
    if not (multiples == np.rint(multiples)).all():
        return -math.inf
    return float(bits[told].sum() * math.log(2))


def feasible_pairs(sampler: Sampler) -> Score:
    """Exploits that few pairs of floats have any words from which the sampler makes them.

    Jin et al. (2021): invert the sampler for each candidate sum, and see whether words near the
    solution give the released floats bit for bit. The share of pairs for which some do, among
    pairs of small radius.
    """
    radii, angles = np.arange(-2, 3)[:, None, None], 16 * np.arange(-60, 61)[None, :, None]

    def score(released: Singles, candidate: Singles, scale: float) -> float:
        z = (released.astype(np.float64) - candidate) / scale
        one, other = lanes(len(z))
        squares = z[one] ** 2 + z[other] ** 2
        near = squares < _SMALL_RADIUS
        one, other, squares = one[near], other[near], squares[near]
        turns = np.arctan2(z[other], z[one]) / (2 * math.pi) % 1
        places = np.rint(np.exp(-squares / 2) * 2**24) + radii
        radius_words = np.clip(places * 2**8, 0, 2**32 - 1).astype(np.uint32)
        angle_words = ((np.rint(turns * 2**32) + angles) % 2**32).astype(np.uint32)
        made = sampler(*np.broadcast_arrays(radius_words, angle_words))
        single = np.float32(scale)
        same = candidate[one] + made[0] * single == released[one]
        same &= candidate[other] + made[1] * single == released[other]
        found = same.any(axis=(0, 1))
        return float(found.mean()) if len(found) else 0.0

    return score


def box_muller(radius_words: Words, angle_words: Words) -> tuple[Singles, Singles]:
    """Box–Muller in single precision: the textbook method, which the attacks above break."""
    unit = np.float32(2.0**-32)
    u = np.minimum(radius_words.astype(np.float32) * unit + unit / 2, np.float32(1))
    angle = angle_words.astype(np.float32) * np.float32(2 * math.pi * 2.0**-32)
    radius = np.sqrt(np.float32(-2) * np.log(u))
    return radius * np.cos(angle), radius * np.sin(angle)


def lossy_perturb_(
    source: RandomSource,
    vector: Tensor,
    purpose: str,
    index: int,
    ends: Sequence[int],
    scales: Sequence[float],
    divisor: float,
) -> Tensor:
    """In place of `RandomSource.perturb_`: `box_muller`, added in single precision."""
    groups = -(-vector.numel() // 32)
    noise = np.empty(32 * groups, np.float32)
    one, other = lanes(len(noise))
    words = source.words(purpose, index, len(noise))
    noise[one], noise[other] = box_muller(words[: 16 * groups], words[16 * groups :])
    start = 0
    for end, scale in zip(ends, scales, strict=True):
        vector[start:end] += torch.from_numpy(noise[start:end] * np.float32(scale)).to(vector)
        start = end
    return vector.div_(divisor)


DISTINGUISHERS: dict[str, Score] = {
    "radius lattice, lanes": radius_lattice(lanes, -0.5, 2.0**24),
    "radius lattice, halves": radius_lattice(halves, 1.0, 2.0**23),
    "possible values": possible_values,
    "precision": precision,
    "feasible pairs": feasible_pairs(box_muller),
}


@dataclass(frozen=True)
class FloatingPointGame:
    """One distinguisher against the noise: each coin decides which sum is released."""

    distinguisher: str
    games: int = 1000
    release: Release = current_release
    delta: float = DELTA

    @property
    def name(self) -> str:
        return f"floating point: {self.distinguisher}"

    def digest(self) -> str:
        return hashlib.sha256(f"{self.name} {self.games}".encode()).hexdigest()

    def play(self, seed: int, progress: Progress) -> Played:
        scale = gaussian_scale()
        scores = outcomes(self.release, DISTINGUISHERS[self.distinguisher], self.games, seed)
        event, relation = events.gaussian(scale), Relation.ADD_OR_REMOVE_ONE
        return Played(scores, event, relation, independent=True, noise_may_be_wrong=False)


def outcomes(release: Release, attack: Score, games: int, seed: int) -> Scores:
    """Play games: a fair coin picks the sum, and the score is positive for the one with a record.

    Where both sums fit alike, the score is a coin of the attacker's own, between −½ and ½.
    """
    generator, scale = np.random.default_rng(seed), gaussian_scale()
    heads = generator.random(games) < 0.5
    values = generator.random(games) - 0.5
    for game in range(games):
        without, with_record = neighbours(generator)
        total = with_record if heads[game] else without
        released = release(total, scale, int(generator.integers(2**62)))
        fits = attack(released, with_record, scale), attack(released, without, scale)
        if fits[0] != fits[1]:
            values[game] = fits[0] - fits[1]
    return Scores(values, np.asarray(heads))


def play(release: Release, attack: Score, games: int, seed: int) -> float:
    """The rate of right guesses.

    >>> play(current_release, precision, 50, seed=1) < 0.75
    True
    """
    scores = outcomes(release, attack, games, seed)
    return float(((scores.values > 0) == scores.heads).mean())
