"""Records in pairs of one class, of which a coin puts one into training.

The number of training records is then the same for all coins, and a coin replaces one record by
another of the same class: what it shows is bounded by ε under replace-one, and under
replace-features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.audit.scores import Array, Coins
from tacit.data.batches import TensorRecords
from tacit.errors import ArgumentError
from tacit.train import Prepared

Places = NDArray[np.int64]
_FEWEST = 8


@dataclass(frozen=True)
class Pool:
    """2·n records: number i and number n + i are a pair."""

    features: Tensor
    labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def pairs(self) -> int:
        return len(self.labels) // 2

    def records(self, places: Places | None = None) -> TensorRecords:
        """Some of the records, or all of them."""
        chosen = slice(None) if places is None else torch.from_numpy(places)
        return TensorRecords(self.features[chosen], self.labels[chosen], self.mean, self.std)


def is_member(heads: Coins) -> Coins:
    """For each record of a pool whether the coin of its pair puts it into training."""
    return np.concatenate((heads, ~heads))


def by_pair(scores: Array) -> Array:
    """One score for each coin: how much more the first of a pair looks like a member."""
    half = len(scores) // 2
    return np.asarray(scores[:half] - scores[half:])


def coins(seed: int, model: int, count: int) -> Coins:
    """The coins of one model; those of different models are independent."""
    return np.asarray(np.random.default_rng([seed, 2, model]).random(count) < 0.5)


def drawn_pool(ready: Prepared, pairs: int | None, seed: int) -> Pool:
    """Pairs from the training records of a recipe."""
    labels = ready.train.labels.numpy()
    order = np.random.default_rng([seed, 3]).permutation(len(labels))
    first, second = [], []
    for label in np.unique(labels):
        same = order[labels[order] == label]
        half = len(same) // 2
        first.append(same[:half])
        second.append(same[half : 2 * half])
    chosen = _mixed(np.concatenate(first), np.concatenate(second), pairs, seed)
    split = ready.data
    return Pool(
        ready.train.features[chosen],
        ready.train.labels[chosen],
        tuple(split.mean),
        tuple(split.std),
    )


def released_pool(ready: Prepared, pairs: int | None, seed: int) -> tuple[Pool, Coins]:
    """Pairs of a training record and an evaluation record, in random order, with the coins that
    say which of the two is the training record."""
    if ready.tested is None:
        raise ArgumentError(
            "the run has no records for evaluation to compare its training records with; attack"
            " the recipe instead, or use gradient canaries"
        )
    inside, outside = ready.train.labels.numpy(), ready.tested.labels.numpy()
    generator = np.random.default_rng([seed, 4])
    first, second = [], []
    for label in np.unique(inside):
        ours = generator.permutation(np.flatnonzero(inside == label))
        theirs = generator.permutation(np.flatnonzero(outside == label))
        count = min(len(ours), len(theirs))
        first.append(ours[:count])
        second.append(theirs[:count] + len(inside))
    both = _mixed(np.concatenate(first), np.concatenate(second), pairs, seed).numpy()
    half = len(both) // 2
    heads = coins(seed, 0, half)
    left = np.where(heads, both[:half], both[half:])
    right = np.where(heads, both[half:], both[:half])
    chosen = torch.from_numpy(np.concatenate((left, right)))
    features = torch.cat((ready.train.features, ready.tested.features))[chosen]
    labels = torch.cat((ready.train.labels, ready.tested.labels))[chosen]
    return Pool(features, labels, tuple(ready.data.mean), tuple(ready.data.std)), heads


def _mixed(first: Places, second: Places, pairs: int | None, seed: int) -> Tensor:
    """So many pairs, in an order that does not follow the classes."""
    if len(first) < _FEWEST:
        raise ArgumentError(f"there are only {len(first)} pairs of records; give more records")
    order = np.random.default_rng([seed, 5]).permutation(len(first))[:pairs]
    return torch.from_numpy(np.concatenate((first[order], second[order])))
