"""Factors of correlated noise: what each leaves in the running sums, per unit of noise.

A stream of gradients is released through a public factor C. What training feels is the noise in
the prefix sums; its root mean square over the steps, times the sensitivity of C, is the noise at
equal privacy: the figure by which mechanisms are compared.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tacit.errors import ArgumentError
from tacit.privacy.participation import completed_size

Series = NDArray[np.float64]


def square_root_coefficients(bands: int) -> Series:
    """First column of the banded square root of the prefix-sum matrix: 1, 1/2, 3/8, …

    >>> square_root_coefficients(3).tolist()
    [1.0, 0.5, 0.375]
    """
    if bands < 1:
        raise ArgumentError(f"bands is {bands}; there must be at least one")
    j = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])


def banded_variances(coefficients: Series, steps: int) -> Series:
    """Variance of the noise in each prefix sum under a banded Toeplitz factor."""
    from scipy.signal import lfilter

    impulse = np.zeros(steps)
    impulse[0] = 1.0
    noise = lfilter([1.0], coefficients, impulse)
    decoder = np.cumsum(noise)
    return np.asarray(np.cumsum(decoder**2))


def node_variance(level: int, reduced: bool) -> float:
    """Variance of a node's estimate; Honaker's takes in the subtree below it.

    >>> round(node_variance(1, True), 4)
    0.6667
    """
    variance = 1.0
    for _ in range(level if reduced else 0):
        variance = 1 / (1 + 1 / (2 * variance))
    return variance


def tree_variances(
    leaves_of_trees: list[int], *, reduced: bool, completion: bool = False
) -> Series:
    """Variance of the noise in each prefix sum under tree aggregation, tree after tree."""
    found: list[float] = []
    before = 0.0
    for leaves in leaves_of_trees:
        for size in range(1, leaves + 1):
            found.append(before + _prefix_variance(size, reduced))
        before += _prefix_variance(completed_size(leaves) if completion else leaves, reduced)
    return np.array(found)


def _prefix_variance(size: int, reduced: bool) -> float:
    levels = [level for level in range(size.bit_length()) if size >> level & 1]
    return sum(node_variance(level, reduced) for level in levels)


def rms(variances: Series) -> float:
    """Root mean square of the noise over all prefix sums."""
    return math.sqrt(float(variances.mean()))
