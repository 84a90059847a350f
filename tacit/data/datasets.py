"""Datasets ready for training: named public ones, or the user's own files.

No statistic is ever computed from the records: normalisation constants, vocabularies and bounds
are fixed in advance. What had to be known to read a dataset is listed in `treated_as_public`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.data import formats, tables, text
from tacit.data.images import needed, read_image_folder
from tacit.data.options import DEFAULTS, DataOptions, refuse_unused
from tacit.data.places import Found, locate
from tacit.data.published import DATASETS, Kind, Published
from tacit.data.records import (
    SPLIT_SEED,
    AnyArray,
    Table,
    class_names_of,
    divided,
    encoded,
    scaled,
)
from tacit.errors import DataError

__all__ = ["SPLIT_SEED", "Data", "DataOptions", "Split", "load"]

_Records = tuple[AnyArray, NDArray[np.int64]]

_OWN_FILES = (".npz", ".csv", ".parquet")


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

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one record's features."""
        return tuple(self.train.features.shape[1:])


def load(name: str, *, data_dir: Path | None = None, options: DataOptions = DEFAULTS) -> Data:
    """A named dataset, or the user's own file or folder at the path `name`.

    Named datasets are searched in `data_dir`, $TACIT_DATA, the user's cache and
    /usr/share/datasets. Loading never runs code found in the data and never prints a record.
    """
    if name in DATASETS:
        return _load_named(DATASETS[name], data_dir, options)
    path = Path(name).expanduser()
    if path.is_dir():
        return _load_folder(path, options)
    if path.suffix.lower() in _OWN_FILES and path.is_file():
        return _load_file(path, options)
    close = difflib.get_close_matches(name, DATASETS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    reason = (
        "a file of a kind that is not read"
        if path.is_file()
        else "neither a named dataset nor an existing file or folder"
    )
    raise DataError(
        f"dataset {name!r}: {reason}.{hint} Give one of {', '.join(DATASETS)}, a file ending in "
        f"{', '.join(_OWN_FILES)}, or a folder of images as CLASS/*.png."
    )


def _split(features: AnyArray, labels: NDArray[np.int64]) -> Split:
    return Split(
        torch.from_numpy(np.require(features, requirements=("C", "W"))),
        torch.from_numpy(np.require(labels, requirements=("C", "W"))),
    )


def _load_named(published: Published, data_dir: Path | None, options: DataOptions) -> Data:
    found = locate(published.name, data_dir)
    if published.kind == "text":
        return _load_reviews(published, found, options)
    refuse_unused(options, (), published.name)
    train, test = _published_images(published, found)
    origin = "fixed constants" if found.layout == "embedded" else "published constants"
    return Data(
        name=published.name,
        train=_split(*train),
        test=_split(*test),
        class_names=published.class_names,
        kind="image",
        mean=published.mean,
        std=published.std,
        treated_as_public=(
            _constants_sentence(published.mean, published.std, origin),
            "class names, image size and the division into training and test records (published)",
        ),
        found_at=found.described,
    )


def _constants_sentence(mean: tuple[float, ...], std: tuple[float, ...], origin: str) -> str:
    means, stds = (", ".join(f"{value:g}" for value in values) for values in (mean, std))
    return f"pixel mean {means} and standard deviation {stds} ({origin})"


def _published_images(published: Published, found: Found) -> tuple[formats.Pair, formats.Pair]:
    classes = len(published.class_names)
    if found.layout == "embedded":
        return _digits()
    if found.layout == "idx":
        return formats.read_idx_folder(found.path, classes, published.shape)
    return formats.read_cifar(found.path, pickled="python" in found.layout, classes=classes)


def _digits() -> tuple[formats.Pair, formats.Pair]:
    """The digits of scikit-learn, 0..16 stretched to 0..255; every fifth record is for testing."""
    bundled = needed("sklearn.datasets", "scikit-learn", "the dataset 'digits'").load_digits()
    images = np.rint(bundled.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = bundled.target.astype(np.int64)
    test = np.arange(len(labels)) % 5 == 4
    return (images[~test], labels[~test]), (images[test], labels[test])


def _load_reviews(published: Published, found: Found, options: DataOptions) -> Data:
    refuse_unused(options, ("length", "vocabulary", "hash_buckets"), published.name)
    if options.vocabulary is None:
        encoder = text.Encoder.by_hash(options.hash_buckets, options.length)
        ids = f"the hashing of words to {options.hash_buckets} ids (a fixed function)"
    else:
        encoder = text.Encoder.by_vocabulary(Path(options.vocabulary).expanduser(), options.length)
        ids = (
            f"the vocabulary of {encoder.size - 2} words in {options.vocabulary} (given as public; "
            f"it must not be made from the records)"
        )
    reviews = list(text.imdb_reviews(found.path))
    splits = []
    for part in ("train", "test"):
        chosen = [review for review in reviews if review.split == part]
        texts, labels = text.in_order(chosen, found.path)
        splits.append(Split(torch.from_numpy(encoder.encode(texts)), torch.from_numpy(labels)))
    return Data(
        name=published.name,
        train=splits[0],
        test=splits[1],
        class_names=published.class_names,
        kind="text",
        mean=(),
        std=(),
        treated_as_public=(
            ids,
            f"the limit of {options.length} words per record (a fixed option)",
            "class names and the division into training and test records (published)",
        ),
        found_at=found.described,
        token_ids=encoder.size,
    )


def _load_folder(path: Path, options: DataOptions) -> Data:
    refuse_unused(options, ("test_fraction", "image_size"), str(path))
    train, test, class_names = read_image_folder(path, options.image_size)
    return _own(
        path,
        (train.images, train.labels),
        None if test is None else (test.images, test.labels),
        class_names,
        ("class names (the names of the folders)",),
        options,
    )


def _load_file(path: Path, options: DataOptions) -> Data:
    used = ["test_fraction", "classes"]
    test: Table | None = None
    if path.suffix.lower() == ".npz":
        train, test = tables.read_npz(path)
    else:
        used.append("label_column")
        is_csv = path.suffix.lower() == ".csv"
        read = tables.read_csv if is_csv else tables.read_parquet
        train = read(path, options.label_column)
    if train.features.ndim == 2:
        used.append("scale")
    refuse_unused(options, tuple(used), str(path))
    if test is not None and (
        test.features.shape[1:] != train.features.shape[1:]
        or test.features.dtype != train.features.dtype
    ):
        raise DataError(
            f"{path}: test records of shape {test.features.shape[1:]} and training records of "
            f"shape {train.features.shape[1:]}, or of another type. Write both alike."
        )
    class_names = class_names_of(train, options.classes)
    public = (
        f"the number of classes, {options.classes} (a given option)"
        if options.classes is not None
        else "class names (all those among the training labels; give `classes` to fix them)"
    )

    def features_and_labels(table: Table) -> _Records:
        features = table.features
        if options.scale is not None:
            features = scaled(features, options.scale)
        return features, encoded(table, class_names)

    return _own(
        path,
        features_and_labels(train),
        None if test is None else features_and_labels(test),
        class_names,
        (public,),
        options,
    )


def _own(
    path: Path,
    train: _Records,
    test: _Records | None,
    class_names: tuple[str, ...],
    public: tuple[str, ...],
    options: DataOptions,
) -> Data:
    """The user's own records, divided by position if asked, with constants fixed in advance."""
    if len(class_names) < 2:
        raise DataError(f"{path}: only one class, {class_names[0]!r}. Give at least two.")
    if options.test_fraction:
        if test is not None:
            raise DataError(
                f"test_fraction={options.test_fraction}: {path} has test records of its own. Leave "
                f"the option out, or remove those records."
            )
        kept, aside = divided(len(train[1]), options.test_fraction, str(path))
        train, test = (train[0][kept], train[1][kept]), (train[0][aside], train[1][aside])
        public += (
            f"which records are set aside for testing: {options.test_fraction:g} of them, by "
            f"position with the fixed seed {SPLIT_SEED}",
        )
    is_image = train[0].dtype == np.uint8
    shape = train[0].shape[1:]
    mean = std = (0.5,) * shape[0] if is_image else ()
    if is_image:
        public += (
            "image size and number of channels",
            _constants_sentence(mean, std, "fixed constants"),
        )
    else:
        public += (f"the number of feature columns, {shape[0]}",)
        if options.scale is not None:
            low, high = options.scale
            public += (f"feature bounds {low:g} to {high:g} (a given option)",)
    return Data(
        name=path.stem if path.is_file() else path.resolve().name,
        train=_split(*train),
        test=None if test is None else _split(*test),
        class_names=class_names,
        kind="image" if is_image else "table",
        mean=mean,
        std=std,
        treated_as_public=public,
        found_at=str(path),
    )
