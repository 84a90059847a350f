"""Training records as batches: gathered by index, normalised by public constants, augmented."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence, Sized
from enum import Enum
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from tacit.clipping.contract import Batch
from tacit.data.released import Release
from tacit.data.sampling import Indices
from tacit.errors import ArgumentError, DataError

_FINGERPRINTED = 256
_CHECKED_ROWS = 4096


class Augmentation(str, Enum):
    """Random changes of an image that keep its label."""

    SHIFT = "shift"
    FLIP = "flip"


class Records(Protocol):
    """Records by index; the first tensor of a batch holds features, the last one labels."""

    def __len__(self) -> int: ...

    @property
    def labels(self) -> Tensor:
        """All labels; private like the records."""
        ...

    def batch(self, indices: Tensor) -> Batch:
        """These records, in this order."""
        ...

    def fingerprint(self) -> str:
        """A hash that changes when the records do; private, as it depends on all of them."""
        ...


class TensorRecords:
    """Records held in memory; images stay in bytes until a batch is gathered.

    So do features in half precision; every other floating type becomes float32 at once.
    `release` says that they are vectors which were released before.
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        release: Release | None = None,
    ) -> None:
        if len(features) == 0:
            raise DataError("the dataset is empty; there is nothing to train on")
        if len(features) != len(labels):
            raise DataError(f"{len(features)} records but {len(labels)} labels; they must match")
        if features.dtype != torch.float16:
            features = _single(features)
        _check_finite(features)
        self.features, self._labels, self.release = features, labels, release
        broadcast = (-1, *([1] * (features.dim() - 2)))
        self._mean = torch.tensor(mean).view(broadcast) if mean else None
        self._std = torch.tensor(std).view(broadcast) if std else None

    def __len__(self) -> int:
        return len(self.features)

    @property
    def labels(self) -> Tensor:
        return self._labels

    def batch(self, indices: Tensor) -> Batch:
        x = self.features.index_select(0, indices)
        x = x.float().div_(255) if x.dtype == torch.uint8 else _single(x)
        if self._mean is not None and self._std is not None:
            x = (x - self._mean) / self._std
        return x, self.labels[indices]

    def fingerprint(self) -> str:
        constants = [t for t in (self._mean, self._std) if t is not None]
        return _hash_of((self.features, self.labels, *constants))


class DatasetRecords:
    """Records of any map-style torch Dataset whose items are tuples of tensors or numbers.

    All but the last, the label, become float32 if they are of another floating type.
    """

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset
        if len(self) == 0:
            raise DataError("the dataset is empty; there is nothing to train on")

    def __len__(self) -> int:
        return len(cast(Sized, self._dataset))

    @cached_property
    def labels(self) -> Tensor:
        """From `targets` where the dataset keeps them apart; otherwise every record is read, once,
        and its features are checked on the way."""
        targets = getattr(self._dataset, "targets", None)
        if targets is not None and len(targets) == len(self):
            return torch.as_tensor(targets)
        return torch.cat([self._checked(i)[-1] for i in range(len(self))])

    def _checked(self, index: int) -> Batch:
        batch = self.batch(torch.tensor([index]))
        for features in batch[:-1]:
            _check_finite(features)
        return batch

    def batch(self, indices: Tensor) -> Batch:
        if len(indices) == 0:
            return tuple(t[:0] for t in self.batch(torch.zeros(1, dtype=torch.int64)))
        *features, labels = default_collate([tuple(self._dataset[int(i)]) for i in indices])
        return (*(_single(t) for t in features), labels)

    def fingerprint(self) -> str:
        """Of the length and of up to 256 records spread evenly, as reading all may be slow."""
        some = torch.linspace(0, len(self) - 1, min(len(self), _FINGERPRINTED)).long()
        return f"{len(self)} {_hash_of(self.batch(some))}"


def _check_finite(features: Tensor) -> None:
    pieces = features.split(_CHECKED_ROWS) if features.is_floating_point() else ()
    if not all(bool(torch.isfinite(piece).all()) for piece in pieces):
        raise DataError(
            "features hold values that are NaN, infinite or too large for float32; clean them"
            " before training"
        )


def _single(features: Tensor) -> Tensor:
    return features.float() if features.is_floating_point() else features


def _hash_of(tensors: Batch) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def as_records(data: object) -> Records:
    """Records from a Dataset or from a pair of tensors or numpy arrays (features, labels).

    Features of any floating type become float32, and so do arrays of labels. Whole numbers in
    arrays become int64, except for
    features in bytes (uint8), which are taken for images and divided by 255.
    """
    if isinstance(data, TensorRecords | DatasetRecords):
        return data
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, tuple | list) and all(isinstance(t, Tensor | np.ndarray) for t in data):
        if len(data) != 2:
            raise ArgumentError(f"data is a tuple of {len(data)} tensors; give (features, labels)")
        return TensorRecords(_tensor(data[0], "features"), _tensor(data[1], "labels"))
    if isinstance(data, Dataset) and hasattr(data, "__len__"):
        return DatasetRecords(data)
    raise ArgumentError(
        f"data is a {type(data).__name__}; give a map-style torch Dataset, or a pair (features,"
        " labels) of tensors or numpy arrays"
    )


def _tensor(values: Tensor | NDArray[Any], what: str) -> Tensor:
    """An array as a tensor, with its memory shared where the type allows."""
    if isinstance(values, Tensor):
        return values
    if values.dtype.kind not in "biuf":
        raise ArgumentError(f"{what} are an array of type {values.dtype}; give numbers")
    if values.dtype.kind in "iu" and not (what == "features" and values.dtype == np.uint8):
        values = values.astype(np.int64, copy=False)
    elif values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            values = values.astype(np.float32, copy=False)
    return torch.from_numpy(np.require(values, requirements=("C", "W")))


class Gatherer:
    """Turns the indices of a step into micro-batches, `views` augmented rows for each record.

    Random changes are drawn for the whole batch before it is cut, so they do not depend on the
    size of the micro-batches.
    """

    def __init__(
        self, records: Records, micro_batch: int, views: int, augment: Sequence[Augmentation]
    ) -> None:
        self._records = records
        self._micro_batch = micro_batch
        self._augment = tuple(augment)
        self.views = views

    def __len__(self) -> int:
        return len(self._records)

    def micro_batches(self, indices: Indices, seed: int) -> Iterator[Batch]:
        """The records of a step in pieces that fit in memory."""
        chosen = torch.from_numpy(indices)
        rows = len(chosen) * self.views
        generator = torch.Generator().manual_seed(seed)
        shifts = torch.randint(0, 1 << 30, (rows, 2), generator=generator)
        flips = torch.rand(rows, generator=generator) < 0.5
        for start in range(0, len(chosen), self._micro_batch):
            stop = min(start + self._micro_batch, len(chosen))
            batch = self._records.batch(chosen[start:stop])
            if self.views > 1:
                batch = tuple(t.repeat_interleave(self.views, 0) for t in batch)
            here = slice(start * self.views, stop * self.views)
            yield (self._changed(batch[0], shifts[here], flips[here]), *batch[1:])

    def _changed(self, x: Tensor, shifts: Tensor, flips: Tensor) -> Tensor:
        if not self._augment:
            return x
        if x.dim() != 4:
            raise ArgumentError(f"augment is {list(self._augment)}; records are not images")
        if Augmentation.FLIP in self._augment:
            x = torch.where(flips.view(-1, 1, 1, 1), x.flip(3), x)
        if Augmentation.SHIFT in self._augment:
            x = _shifted(x, shifts)
        return x


def _shifted(x: Tensor, draws: Tensor) -> Tensor:
    """Each image moved by up to an eighth of its size, the border filled from its corner value."""
    rows, _, height, width = x.shape
    reach = max(1, height // 8), max(1, width // 8)
    dy = draws[:, 0] % (2 * reach[0] + 1) - reach[0]
    dx = draws[:, 1] % (2 * reach[1] + 1) - reach[1]
    y = (torch.arange(height) + dy[:, None]).clamp(0, height - 1)
    z = (torch.arange(width) + dx[:, None]).clamp(0, width - 1)
    return x[torch.arange(rows)[:, None, None], :, y[:, :, None], z[:, None, :]].movedim(3, 1)
