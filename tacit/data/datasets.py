"""Datasets ready for training: named public ones, or the user's own files.

No statistic is ever computed from the records: normalisation constants, vocabularies, bounds and
classes are fixed in advance, unless the user has the classes taken from the labels. What had to be
known to read a dataset is listed in `treated_as_public`.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import numpy as np
import torch

from tacit.data import formats, text
from tacit.data.images import needed
from tacit.data.loaded import Data, Split, constants_sentence, split_of
from tacit.data.options import DEFAULTS, TEXT_OPTIONS, DataOptions, refuse_unused
from tacit.data.own import OWN_FILES, load_file, load_folder
from tacit.data.places import Found, locate
from tacit.data.published import DATASETS, Published
from tacit.data.records import SPLIT_SEED
from tacit.errors import DataError

__all__ = ["SPLIT_SEED", "Data", "DataOptions", "Split", "load"]


def load(name: str, *, data_dir: Path | None = None, options: DataOptions = DEFAULTS) -> Data:
    """A named dataset, or the user's own file or folder at the path `name`.

    Named datasets are searched in `data_dir`, $TACIT_DATA, the user's cache and
    /usr/share/datasets. Loading never runs code found in the data and never prints a record.
    """
    if name in DATASETS:
        return _load_named(DATASETS[name], data_dir, options)
    path = Path(name).expanduser()
    if path.is_dir():
        return load_folder(path, options)
    if path.suffix.lower() in OWN_FILES and path.is_file():
        return load_file(path, options)
    close = difflib.get_close_matches(name, DATASETS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    reason = (
        "a file of a kind that is not read"
        if path.is_file()
        else "neither a named dataset nor an existing file or folder"
    )
    raise DataError(
        f"dataset {name!r}: {reason}.{hint} Give one of {', '.join(DATASETS)}, a file ending in "
        f"{', '.join(OWN_FILES)}, or a folder of images as CLASS/*.png."
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
        train=split_of(*train),
        test=split_of(*test),
        class_names=published.class_names,
        kind="image",
        mean=published.mean,
        std=published.std,
        treated_as_public=(
            constants_sentence(published.mean, published.std, origin),
            "class names, image size and the division into training and test records (published)",
        ),
        found_at=found.described,
        published=True,
    )


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
    refuse_unused(options, TEXT_OPTIONS, published.name)
    encoder, public = text.encoder_for(options)
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
            *public,
            "class names and the division into training and test records (published)",
        ),
        found_at=found.described,
        published=True,
        token_ids=encoder.size,
    )
