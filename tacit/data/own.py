"""The user's own files: tables, arrays and folders of images, with classes stated in advance.

Nothing is computed from the records to prepare them. The one exception is `classes =
"from-labels"`, which the user has to choose and which `treated_as_public` then names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tacit.data import labels, tables
from tacit.data.images import read_image_folder
from tacit.data.loaded import Data, constants_sentence, split_of
from tacit.data.options import TEXT_OPTIONS, DataOptions, Scale, refuse_unused, stated_classes
from tacit.data.published import Kind
from tacit.data.records import SPLIT_SEED, AnyArray, Table, divided, scaled
from tacit.data.released import Release, release_of
from tacit.data.text import Encoder, encoder_for
from tacit.errors import DataError

OWN_FILES = (".npz", ".csv", ".parquet")

_Records = tuple[AnyArray, NDArray[np.int64]]


@dataclass(frozen=True)
class _Read:
    """Records as read, before some are set aside; `public` is what had to be known to read them."""

    path: Path
    train: _Records
    test: _Records | None
    class_names: tuple[str, ...]
    public: tuple[str, ...]
    token_ids: int = 0
    release: Release | None = None


def load_folder(path: Path, options: DataOptions) -> Data:
    """Pictures in one folder per class."""
    refuse_unused(options, ("classes", "test_fraction", "image_size", "channels"), str(path))
    classes = stated_classes(options, path)
    names = labels.numbered(classes) if isinstance(classes, int) else classes
    train, test, class_names = read_image_folder(
        path, None if isinstance(names, str) else names, options.image_size, options.channels
    )
    read = _Read(
        path,
        (train.images, train.labels),
        None if test is None else (test.images, test.labels),
        class_names,
        (labels.public_sentence(classes),),
    )
    return _data(read, options)


def load_file(path: Path, options: DataOptions) -> Data:
    """A table of numbers, a table with a column of texts, or arrays."""
    classes = stated_classes(options, path)
    contents = tables.contents_of(path) if path.suffix.lower() == ".npz" else None
    train, test = _tables(path, options, contents)
    class_names = labels.class_names(train, classes)
    public: tuple[str, ...] = (labels.public_sentence(classes),)
    encoder: Encoder | None = None
    if options.text_column is not None:
        encoder, sentences = encoder_for(options)
        public += sentences

    def features_and_labels(table: Table) -> _Records:
        features = table.features
        if encoder is not None:
            features = encoder.encode(features.tolist())
        elif options.scale is not None:
            features = scaled(table, options.scale)
        return features, labels.encoded(table, classes, class_names)

    read = _Read(
        path,
        features_and_labels(train),
        None if test is None else features_and_labels(test),
        class_names,
        public,
        0 if encoder is None else encoder.size,
        None if contents is None else release_of(path, contents),
    )
    return _data(read, options)


def _tables(path: Path, options: DataOptions, contents: bytes | None) -> tuple[Table, Table | None]:
    """Training and test records as they are in the file; options without a use are refused."""
    used: tuple[str, ...] = ("classes", "test_fraction")
    if contents is None:
        used += ("label_column", "text_column")
        used += TEXT_OPTIONS if options.text_column is not None else ("scale",)
        refuse_unused(options, used, str(path))
        is_csv = path.suffix.lower() == ".csv"
        read = tables.read_csv if is_csv else tables.read_parquet
        return read(path, options.label_column, options.text_column), None
    train, test = tables.read_npz(path, contents)
    refuse_unused(options, (*used, "scale") if train.features.ndim == 2 else used, str(path))
    if test is not None and (
        test.features.shape[1:] != train.features.shape[1:]
        or test.features.dtype != train.features.dtype
    ):
        raise DataError(
            f"{path}: test records of shape {test.features.shape[1:]} and training records of "
            f"shape {train.features.shape[1:]}, or of another type. Write both alike."
        )
    return train, test


def _said(scale: Scale) -> str:
    """The bounds of columns in words."""
    if isinstance(scale, dict):
        return ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in scale.items())
    pairs: list[Sequence[float]] = [pair for pair in scale if isinstance(pair, tuple)]
    alike = [bound for bound in scale if not isinstance(bound, tuple)]
    return ", ".join(" to ".join(f"{b:g}" for b in pair) for pair in pairs or [alike])


def _data(read: _Read, options: DataOptions) -> Data:
    """The user's own records, divided by position if asked, with constants fixed in advance."""
    path, train, test, public = read.path, read.train, read.test, read.public
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
    kind: Kind = "text" if read.token_ids else "image" if train[0].dtype == np.uint8 else "table"
    shape = train[0].shape[1:]
    mean = std = (0.5,) * shape[0] if kind == "image" else ()
    if kind == "image":
        public += (
            "image size and number of channels",
            constants_sentence(mean, std, "fixed constants"),
        )
    elif kind == "table":
        public += (f"the number of feature columns, {shape[0]}",)
        if options.scale is not None:
            public += (f"feature bounds {_said(options.scale)} (a given option)",)
    return Data(
        name=path.stem if path.is_file() else path.resolve().name,
        train=split_of(*train),
        test=None if test is None else split_of(*test),
        class_names=read.class_names,
        kind=kind,
        mean=mean,
        std=std,
        treated_as_public=public,
        found_at=str(path),
        token_ids=read.token_ids,
        release=read.release,
    )
