"""Names, places, options and the division of a user's own records."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tacit.data.datasets import DataOptions, load
from tacit.data.published import DATASETS
from tacit.data.records import divided
from tacit.errors import DataError


def test_digits():
    data = load("digits")
    assert data.train.features.shape == (1438, 1, 8, 8)
    assert data.test is not None and data.test.features.shape == (359, 1, 8, 8)
    assert data.train.features.dtype == torch.uint8 and data.train.labels.dtype == torch.int64
    assert int(data.train.features.max()) == 255 and int(data.train.features.min()) == 0
    assert set(data.train.features.unique().tolist()) == {round(i * 255 / 16) for i in range(17)}
    assert data.mean == data.std == (0.5,)
    assert data.found_at == "embedded in scikit-learn"
    assert torch.equal(load("digits").train.features, data.train.features)


def test_digits_split_takes_every_fifth():
    from sklearn.datasets import load_digits

    data = load("digits")
    assert data.test is not None
    assert data.test.labels.tolist() == load_digits().target[4::5].tolist()


def test_search_order(write, monkeypatch, tmp_path):
    folders = [tmp_path / name for name in ("argument", "environment", "cache/tacit", "system")]
    monkeypatch.setenv("TACIT_DATA", str(folders[1]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tacit.data.places.SYSTEM_FOLDER", folders[3])
    for folder in reversed(folders):
        write.root = folder
        expected = write.idx("mnist")
        assert load("mnist", data_dir=folders[0]).found_at == str(expected)
    assert load("mnist").found_at == str(folders[1] / "mnist")


def test_not_found_lists_every_place(write, monkeypatch, tmp_path):
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "elsewhere"))
    for name in ("mnist", "fashion-mnist", "cifar-10", "imdb"):
        with pytest.raises(DataError) as raised:
            load(name, data_dir=write.root)
        message = str(raised.value)
        assert f"tacit data fetch {name}" in message
        for place in (write.root, tmp_path / "elsewhere", "no-cache/tacit", "no-system"):
            assert str(place) in message


def test_unknown_names(tmp_path):
    with pytest.raises(DataError, match="Did you mean 'mnist'"):
        load("mnits")
    with pytest.raises(DataError, match=r"gone\.csv.*neither"):
        load(str(tmp_path / "gone.csv"))
    (tmp_path / "mine.pkl").write_bytes(b"")
    with pytest.raises(DataError, match="not read"):
        load(str(tmp_path / "mine.pkl"))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("label_column", ""),
        ("vocabulary", 3),
        ("test_fraction", 1),
        ("test_fraction", -0.1),
        ("test_fraction", math.nan),
        ("test_fraction", "0.1"),
        ("length", 0),
        ("length", 2.5),
        ("length", None),
        ("hash_buckets", True),
        ("image_size", 0),
        ("channels", 2),
        ("channels", True),
        ("classes", 1),
        ("classes", True),
        ("classes", "labels"),
        ("classes", ["only"]),
        ("classes", ["twice", "twice"]),
        ("classes", ["", "b"]),
        ("classes", [" a", "b"]),
        ("classes", [0, 1]),
        ("text_column", ""),
        ("scale", (1, 1)),
        ("scale", (0, math.inf)),
        ("scale", (math.nan, 1)),
        ("scale", (0,)),
        ("scale", "ab"),
        ("scale", (False, True)),
    ],
)
def test_invalid_options(option, value):
    with pytest.raises(DataError, match=f"{option}="):
        DataOptions(**{option: value})


def test_list_bounds_become_a_tuple():
    bounds: Any = [0, 2]
    assert DataOptions(scale=bounds).scale == (0.0, 2.0)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("digits", {"test_fraction": 0.2}),
        ("digits", {"scale": (0, 1)}),
        ("mine.npz", {"label_column": "y"}),
        ("mine.npz", {"image_size": 8}),
    ],
)
def test_unused_options_are_refused(tmp_path, name, option):
    if name == "mine.npz":
        np.savez(tmp_path / name, x=np.eye(2), y=[0, 1])
        name = str(tmp_path / name)
        option = {**option, "classes": 2}
    with pytest.raises(DataError, match="has no effect"):
        load(name, options=DataOptions(**option))


def test_division_is_pinned_and_complete(tmp_path):
    train, test = divided(10, 0.3, "mine")
    assert test.tolist() == PINNED
    assert sorted([*train, *test]) == list(range(10))
    features = np.arange(10, dtype=np.float32)[:, None]
    np.savez(tmp_path / "mine.npz", x=features, y=np.arange(10) % 2)
    data = load(str(tmp_path / "mine.npz"), options=DataOptions(classes=2, test_fraction=0.3))
    assert data.test is not None
    assert data.test.features.flatten().tolist() == PINNED
    assert data.test.labels.tolist() == [i % 2 for i in PINNED]
    assert any("by position" in sentence for sentence in data.treated_as_public)


PINNED = [0, 8, 9]


def test_division_that_leaves_nothing():
    for fraction in (0.001, 0.999):
        with pytest.raises(DataError, match="Choose another fraction"):
            divided(10, fraction, "mine")


def test_published_constants_are_complete():
    for published in DATASETS.values():
        assert len(published.train_per_class) == len(published.class_names)
        assert len(published.test_per_class) == len(published.class_names)
        if published.kind == "image":
            assert len(published.mean) == len(published.std) == published.shape[0]
        for download in published.downloads:
            assert len(download.md5) == 32 and download.size > 0
            assert all(address.startswith("https://") for address in download.addresses)
