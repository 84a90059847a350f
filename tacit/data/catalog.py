"""What `tacit data list`, `check` and `fetch` do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tacit.data.datasets import Data, load
from tacit.data.fetching import Progress, fetch, matches
from tacit.data.formats import DAMAGE, batch_files
from tacit.data.options import DEFAULTS, FROM_LABELS, DataOptions
from tacit.data.places import IDX_STEMS, Found, find, idx_file, locate
from tacit.data.published import (
    CIFAR_BINARY_ARCHIVE,
    CIFAR_BINARY_SHA1,
    CIFAR_PYTHON_ARCHIVE,
    CIFAR_PYTHON_MD5,
    DATASETS,
    IMDB_ARCHIVE,
    IMDB_REVIEWS_PER_SIDE,
    Published,
)
from tacit.data.text import SIDES, imdb_reviews
from tacit.errors import DataError

__all__ = ["CheckReport", "Entry", "FileCheck", "Progress", "catalog", "check", "fetch"]


_OWN = "your own data, read without a fault; to train on it, state data.options.classes"


@dataclass(frozen=True)
class Entry:
    """One named dataset as listed; `found` and `size_on_disk` are None where it is not here."""

    name: str
    what: str
    train_records: int
    test_records: int
    shape: tuple[int, ...]
    found: str | None
    size_on_disk: int | None


@dataclass(frozen=True)
class FileCheck:
    """One file, or one set of files, compared with what its publisher says about it."""

    path: Path
    ok: bool
    detail: str


@dataclass(frozen=True)
class CheckReport:
    """The outcome of a check; `problems` is empty exactly if everything was as published."""

    name: str
    found_at: str
    files: tuple[FileCheck, ...]
    train_records: int | None
    test_records: int | None
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


def catalog(data_dir: Path | None = None) -> list[Entry]:
    """All named datasets, with where each was found on this machine."""
    entries = []
    for published in DATASETS.values():
        found = find(published.name, data_dir)
        embedded = found is not None and found.layout == "embedded"
        entries.append(
            Entry(
                name=published.name,
                what=published.what,
                train_records=published.train_records,
                test_records=published.test_records,
                shape=published.shape,
                found=None if found is None else found.described,
                size_on_disk=None if found is None or embedded else _size(found.path),
            )
        )
    return entries


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def check(
    name: str, data_dir: Path | None = None, *, options: DataOptions = DEFAULTS
) -> CheckReport:
    """Compare a named dataset with its published checksums, counts and labels.

    Damage is reported, not raised; only a dataset that is nowhere raises DataError. For the user's
    own path there is nothing published, so the check is that it loads, with any classes unless
    `options` names them; nothing but the number of records is reported.
    """
    published = DATASETS.get(name)
    if published is None and options.classes is None:
        options = replace(options, classes=FROM_LABELS)
    found = None if published is None else locate(name, data_dir)
    files = () if found is None else tuple(_file_checks(name, found))
    problems = [f"{file.path}: {file.detail}" for file in files if not file.ok]
    data: Data | None = None
    try:
        data = load(name, data_dir=data_dir, options=options)
    except DataError as error:
        if published is None:
            raise
        problems.append(str(error))
    if data is not None and published is not None:
        problems += _count_problems(published, data)
    return CheckReport(
        name=name,
        found_at=_OWN if found is None else found.described,
        files=files,
        train_records=None if data is None else len(data.train),
        test_records=None if data is None or data.test is None else len(data.test),
        problems=tuple(problems),
    )


def _count_problems(published: Published, data: Data) -> Iterator[str]:
    splits = [("training", data.train, published.train_per_class)]
    if data.test is not None:
        splits.append(("test", data.test, published.test_per_class))
    for which, split, expected in splits:
        if len(split) != sum(expected):
            yield f"{len(split)} {which} records, but {sum(expected)} were published"
            continue
        counts = torch.bincount(split.labels, minlength=len(expected)).tolist()
        for name, count, wanted in zip(published.class_names, counts, expected, strict=True):
            if count != wanted:
                yield f"{count} {which} records of class {name!r}, but {wanted} were published"


def _file_checks(name: str, found: Found) -> Iterator[FileCheck]:
    try:
        if found.layout == "idx":
            yield from _idx_checks(name, found.path)
        elif found.layout in ("cifar-binary", "cifar-binary-archive"):
            yield from _cifar_checks(found, CIFAR_BINARY_SHA1, "sha1")
        elif found.layout in ("cifar-python", "cifar-python-archive"):
            yield from _cifar_checks(found, CIFAR_PYTHON_MD5, "md5")
        elif found.layout in ("imdb-folder", "imdb-archive"):
            yield _imdb_check(found)
    except (DataError, *DAMAGE) as error:
        yield FileCheck(found.path, False, f"cannot be checked ({error})")


def _idx_checks(name: str, folder: Path) -> Iterator[FileCheck]:
    downloads = {download.file: download for download in DATASETS[name].downloads}
    for stem in IDX_STEMS:
        path = idx_file(folder, stem)
        download = downloads[f"{stem}.gz"]
        if path is None:
            yield FileCheck(folder / download.file, False, "missing")
        elif path.suffix == ".gz":
            yield _summed(path, matches(path, download))
        else:
            with path.open("rb") as stream:
                content = stream.read()
            yield _summed(path, hashlib.sha256(content).hexdigest() == download.content_sha256)


def _cifar_checks(found: Found, sums: dict[str, str], algorithm: str) -> Iterator[FileCheck]:
    if found.path.is_file():
        archive = CIFAR_BINARY_ARCHIVE if algorithm == "sha1" else CIFAR_PYTHON_ARCHIVE
        if matches(found.path, archive):
            yield _summed(found.path, True)
            return
    for name, content in batch_files(found.path, sums):
        actual = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
        yield _summed(found.path / name, actual == sums[name])


def _summed(path: Path, ok: bool) -> FileCheck:
    return FileCheck(
        path,
        ok,
        "checksum as published" if ok else "its checksum is not the published one; fetch it again",
    )


def _imdb_check(found: Found) -> FileCheck:
    """An archive by its checksum; a folder, for which none is published, by its file names."""
    if found.path.is_file() and matches(found.path, IMDB_ARCHIVE):
        return _summed(found.path, True)
    numbers: dict[tuple[str, str], list[int]] = {
        (split, side): [] for split in ("train", "test") for side in SIDES
    }
    for review in imdb_reviews(found.path):
        numbers[review.split, review.side].append(review.number)
        if (review.rating >= 7) != (review.side == "pos") or review.rating in (5, 6):
            return FileCheck(
                found.path,
                False,
                f"review {review.split}/{review.side}/{review.number} is named with rating "
                f"{review.rating}, which does not belong in {review.side}; fetch it again",
            )
    for (split, side), present in numbers.items():
        if sorted(present) != list(range(IMDB_REVIEWS_PER_SIDE)):
            return FileCheck(
                found.path,
                False,
                f"{split}/{side} does not hold exactly the reviews 0 to "
                f"{IMDB_REVIEWS_PER_SIDE - 1}; fetch it again",
            )
    return FileCheck(
        found.path,
        True,
        "all reviews named as published; there are no published checksums of their words",
    )
