"""Features computed record by record, by a function that has seen no private record.

Such a function changes one record when one record changes, so it costs no privacy and leaves
every sensitivity as it is (docs/proofs/dpsgd.md, "Features"). What it takes from elsewhere, such
as filters, is fixed in advance and named in the certificate.

Features of the published datasets are kept in the user's cache, so that they are computed once.
Those of a user's own records are private like the records and are never written there.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.data.generated import GeneratedImages, Pictures
from tacit.data.loaded import Data, Split
from tacit.data.places import user_cache
from tacit.data.scattering import Scattering
from tacit.data.upright import upright as set_upright
from tacit.data.whitening import GENERATED, Whitening
from tacit.errors import ArgumentError

_ROWS = 64
_GENERATED = 512
_SEED = 20_171_127


class RecordFeatures(Protocol):
    """A fixed function from one record's features to others."""

    @property
    def described(self) -> str:
        """What the certificate says of it."""
        ...

    @property
    def key(self) -> dict[str, Any]:
        """Everything that decides its values."""
        ...

    def compute(self, rows: Tensor) -> Tensor:
        """Features of each row; no row may depend on another."""
        ...


class ScatteringFeatures:
    """Scattering coefficients of an image, normalised within each record.

    The coefficients are cut into `groups` of neighbouring paths; within each group of each record
    they get mean 0 and variance 1. With `mirrored`, those of the image and of its mirror image are
    averaged and the left half is kept: the right one says the same again. With `centred`, the mean
    over generated images is subtracted: what all records share makes gradients long and tells no
    class from another. With `whitened` above 0, directions in which generated images vary much
    are shortened as well (`Whitening`). With `upright`, slant and place of strokes are taken out
    first.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        scale: int,
        angles: int,
        groups: int,
        mirrored: bool,
        centred: bool = False,
        upright: bool = False,
        whitened: float = 0.0,
        pictures: Pictures = "auto",
    ) -> None:
        if len(shape) != 3:
            raise ArgumentError(
                f"features is 'scattering', but records have shape {shape}; it needs images"
            )
        self._transform = Scattering((shape[1], shape[2]), scale, angles)
        self._groups, self._mirrored, self._upright = groups, mirrored, upright
        self.key = {
            "function": "scattering 1",
            "shape": shape,
            "scale": scale,
            "angles": angles,
            "groups": groups,
            "mirrored": mirrored,
            "centred": centred,
            **({"upright": 1} if upright else {}),
            **({"whitened": whitened} if whitened else {}),
            **({"pictures": pictures} if pictures != "auto" else {}),
        }
        mirror = ", averaged with those of its mirror image" if mirrored else ""
        image = "image, set upright by its own moments" if upright else "image"
        shown = "" if pictures == "auto" else f" of {pictures}"
        middle = f" and centred by {_GENERATED} generated images{shown}" if centred else ""
        if whitened:
            middle = f" and whitened (power {whitened:g}) by {GENERATED} generated images{shown}"
        self.described = (
            f"the scattering transform of each {image} (scale {scale}, {angles} angles{mirror}),"
            f" normalised within the image in {groups} groups{middle}: a fixed function of one"
            " record"
        )
        paths = self._paths(torch.zeros(1, *shape)).shape[1]
        if paths % groups:
            raise ArgumentError(
                f"features.groups is {groups}, which does not divide the {paths} channels; choose a"
                " divisor"
            )
        self._shape, self._pictures = shape, pictures
        self._centred, self._power = centred, whitened

    def compute(self, rows: Tensor) -> Tensor:
        """[n, channels, height, width] in bytes or in [0, 1] → [n, paths, …]."""
        found = self._normalised(rows)
        if self._power:
            return self._whitening(found.flatten(1)).view_as(found)
        return found - self._centre if self._centred else found

    @cached_property
    def _centre(self) -> Tensor:
        return self._of_generated(_GENERATED).mean(0)

    @cached_property
    def _whitening(self) -> Whitening:
        return Whitening.by(self._of_generated(GENERATED).flatten(1), self._power)

    def _of_generated(self, count: int) -> Tensor:
        drawn = GeneratedImages.draw(count, self._shape, _SEED, self._pictures).pixels
        return torch.cat([self._normalised(rows) for rows in drawn.split(_GENERATED)])

    def _normalised(self, rows: Tensor) -> Tensor:
        scaled = rows.float() / 255 if rows.dtype == torch.uint8 else rows
        paths = self._paths(set_upright(scaled) if self._upright else scaled)
        grouped = paths.reshape(len(paths), self._groups, -1)
        centred = grouped - grouped.mean(2, keepdim=True)
        spread = centred.square().mean(2, keepdim=True).add(1e-5).sqrt()
        return (centred / spread).view_as(paths)

    def _paths(self, images: Tensor) -> Tensor:
        paths = self._transform(images)
        if not self._mirrored:
            return paths
        both = (paths + self._transform(images.flip(3))) / 2
        return both[..., : (both.shape[3] + 1) // 2].contiguous()


Progress = Callable[[int, int], None]
"""Is told how many rows of how many are done."""


def with_features(
    data: Data, function: RecordFeatures, progress: Progress = lambda done, rows: None
) -> Data:
    """The same records with other features, from the cache where they were computed before."""
    cache = user_cache() / "features" if data.published else None
    return dataclasses.replace(
        data,
        train=_converted(data.train, function, cache, progress),
        test=_converted(data.test, function, cache, progress) if data.test else None,
        mean=(),
        std=(),
        treated_as_public=(*data.treated_as_public, function.described),
    )


def _converted(
    split: Split, function: RecordFeatures, cache: Path | None, progress: Progress
) -> Split:
    if cache is None:
        return Split(torch.from_numpy(_computed(split, function, None, progress)), split.labels)
    path = cache / f"{_name(split, function)}.npy"
    values = _stored(path, len(split))
    if values is None:
        cache.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(path.with_suffix(".lock")):
            values = _stored(path, len(split))
            if values is None:
                values = _kept(split, function, path, progress)
    return Split(torch.from_numpy(values), split.labels)


@contextmanager
def _one_at_a_time(lock: Path) -> Iterator[None]:
    """Runs that start together wait for the first to compute what all of them need."""
    with open(lock, "w", encoding="ascii") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _kept(
    split: Split, function: RecordFeatures, path: Path, progress: Progress
) -> NDArray[np.float16]:
    """All features, computed and put in their place at once."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    try:
        _computed(split, function, Path(temporary), progress)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    values: NDArray[np.float16] = np.load(path, mmap_mode="c")
    return values


def _computed(
    split: Split, function: RecordFeatures, path: Path | None, progress: Progress
) -> NDArray[np.float16]:
    """All features in half precision, which keeps three digits: more than the noise leaves."""
    shape = (len(split), *function.compute(split.features[:1]).shape[1:])
    values = (
        np.empty(shape, np.float16)
        if path is None
        else np.lib.format.open_memmap(path, "w+", np.float16, shape)
    )
    for start in range(0, len(split), _ROWS):
        rows = split.features[start : start + _ROWS]
        values[start : start + len(rows)] = function.compute(rows).numpy()
        progress(start + len(rows), len(split))
    if isinstance(values, np.memmap):
        values.flush()
    return values


def _stored(path: Path, records: int) -> NDArray[np.float16] | None:
    """Features computed before; a file that is not whole counts as absent."""
    try:
        values: NDArray[np.float16] = np.load(path, mmap_mode="c")
    except (OSError, ValueError):
        return None
    return values if values.dtype == np.float16 and len(values) == records else None


def _name(split: Split, function: RecordFeatures) -> str:
    digest = hashlib.sha256(json.dumps(function.key, sort_keys=True).encode())
    digest.update(str((split.features.dtype, tuple(split.features.shape))).encode())
    digest.update(split.features.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:40]
