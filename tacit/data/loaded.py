"""A dataset in memory, with all that training has to know about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.data.published import Kind
from tacit.data.records import AnyArray
from tacit.data.released import Release


@dataclass(frozen=True)
class Split:
    """Features (uint8 images, float32 tables, int64 token ids) and one int64 label per record."""

    features: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Data:
    """A dataset in memory, at least one record in each split, every label below `classes`.

    `mean` and `std` apply per channel to images divided by 255, and are empty otherwise.
    `token_ids` is the number of distinct ids that text may hold, padding included, else 0.
    `release` says that the training records are vectors that were released before.
    """

    name: str
    train: Split
    test: Split | None
    class_names: tuple[str, ...]
    kind: Kind
    mean: tuple[float, ...]
    std: tuple[float, ...]
    treated_as_public: tuple[str, ...]
    found_at: str
    token_ids: int = 0
    release: Release | None = None
    published: bool = False
    """Whether anyone may have these records; a user's own never are, whatever their file's name."""

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one record's features."""
        return tuple(self.train.features.shape[1:])


def split_of(features: AnyArray, labels: NDArray[np.int64]) -> Split:
    """Arrays as tensors that share their memory where they can."""
    return Split(
        torch.from_numpy(np.require(features, requirements=("C", "W"))),
        torch.from_numpy(np.require(labels, requirements=("C", "W"))),
    )


def constants_sentence(mean: tuple[float, ...], std: tuple[float, ...], origin: str) -> str:
    """What the certificate says of the constants that pixels are normalised with."""
    means, stds = (", ".join(f"{value:g}" for value in values) for values in (mean, std))
    return f"pixel mean {means} and standard deviation {stds} ({origin})"
