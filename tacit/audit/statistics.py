"""What an attacker who sees every step makes of it: log-likelihood ratios, canary by canary.

Each canary has a coordinate of its own. `seen[t, i]`, in units of the clipping bound, is the
contribution of canary i if it took part in step t (0 or 1; −1 or 1 where records are replaced),
plus noise. Sampling and noise are what the method promises, so no other statistic of these values
tells more (Neyman and Pearson).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from torch import Tensor, float64, zeros

from tacit.errors import ArgumentError
from tacit.noise.correlated import NoiseStream
from tacit.noise.source import RandomSource
from tacit.privacy import factors

Array = NDArray[np.float64]
Seen = NDArray[np.float32]
_MOST_STEPS = 3000


def sampled(seen: Seen, rate: float, noise: float, replaced: bool) -> Array:
    """Each canary is in each step independently at this rate; noise is independent."""
    total = np.zeros(seen.shape[1])
    for values in seen:
        total += _sampled_ratio(values.astype(np.float64), rate, noise, replaced)
    return total


def _sampled_ratio(values: Array, rate: float, noise: float | Array, replaced: bool) -> Array:
    """ln of the density with the canary over that without it, or with its opposite."""
    present = _log_mixture((values - 0.5) / np.square(noise), rate)
    return present - _log_mixture((-values - 0.5) / np.square(noise), rate) if replaced else present


def _log_mixture(ratio: Array, rate: float) -> Array:
    """ln(1 − rate + rate·e^ratio)."""
    if rate == 1:
        return ratio
    return np.asarray(np.logaddexp(np.log1p(-rate), np.log(rate) + ratio))


def in_groups(
    seen: Seen, bands: int, rate: float, noise: float, groups: NDArray[np.int64], replaced: bool
) -> Array:
    """Groups take turns, canaries of the group whose turn it is are sampled; banded noise.

    C·x undoes the correlation. A canary that takes part at step t then shows in the `bands` steps
    from t on, which no other use of it touches; they are summed up in the proportion of the
    factor's column.
    """
    column = factors.square_root_coefficients(bands)
    white = lfilter(column, [1.0], seen.astype(np.float64), axis=0)
    total = np.zeros(seen.shape[1])
    for step in range(len(seen)):
        mine = groups == step % bands
        window = white[step : step + bands, mine]
        part = column[: len(window)]
        weight = float(part @ part)
        spread = noise * np.sqrt(float(column @ column) / weight)
        total[mine] += _sampled_ratio(part @ window / weight, rate, spread, replaced)
    return total


def in_order(seen: Seen, uses: Array, covariance: Array, noise: float, replaced: bool) -> Array:
    """Canary i takes part where `uses[t, i]` is one; noise has this covariance over the steps.

    The ratio is linear: gᵀΣ⁻¹x − gᵀΣ⁻¹g/2 with g the canary's steps.
    """
    weights = np.linalg.solve(covariance, uses) / noise**2
    product = np.einsum("ti,ti->i", weights, seen)
    if replaced:
        return np.asarray(2 * product)
    return np.asarray(product - np.einsum("ti,ti->i", weights, uses) / 2)


def exposure(uses: Array, covariance: Array) -> Array:
    """Squared distance between the two worlds of each column of `uses`, for unit noise."""
    return np.asarray(np.einsum("ti,ti->i", np.linalg.solve(covariance, uses), uses))


class Draws(RandomSource):
    """A source that names its numbers instead of drawing them: each is a coordinate of its own.

    A noise stream that is fed with it returns, step by step, the rows of the matrix that maps
    independent draws to noise.
    """

    def __init__(self, count: int) -> None:
        super().__init__(bytes(32), "the names of draws")
        self._count = count
        self._drawn = 0

    def perturb_(self, vector: Tensor, *_: object) -> Tensor:
        if self._drawn >= self._count or vector.numel() != self._count:
            raise ArgumentError(f"the stream makes more than {self._count} draws")
        vector[self._drawn] += 1.0
        self._drawn += 1
        return vector


def most_draws(steps: int) -> int:
    """Enough coordinates for every stream of so many steps; too many steps are refused."""
    if steps > _MOST_STEPS:
        raise ArgumentError(
            f"the run has {steps} steps with correlated noise, more than the {_MOST_STEPS} that"
            " this attack handles; audit the recipe with fewer epochs or larger batches"
        )
    return 4 * steps + 4


def noise_covariance(stream: NoiseStream, steps: int) -> Array:
    """Covariance over the steps of what a stream of `Draws` adds to the gradients."""
    nothing = zeros(most_draws(steps), dtype=float64)
    rows = np.stack([stream.release(step, nothing).numpy() for step in range(steps)])
    return np.asarray(rows @ rows.T)
