"""Own arrays: images and splits are told apart, faults named without private values."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from own_files import csv_file as csv_file
from own_files import load
from own_files import npz_file as npz_file
from own_files import parquet_file as parquet_file

from tacit.errors import DataError


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((4, 6, 5), (1, 6, 5)),
        ((4, 1, 6, 5), (1, 6, 5)),
        ((4, 3, 6, 5), (3, 6, 5)),
        ((4, 6, 5, 3), (3, 6, 5)),
        ((4, 6, 5, 1), (1, 6, 5)),
    ],
)
def test_npz_images(npz_file, shape, wanted):
    images = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    data = load(npz_file(x=images, y=[0, 1, 0, 1]))
    assert data.kind == "image" and data.input_shape == wanted
    assert data.mean == data.std == (0.5,) * wanted[0]
    if shape[-1] == 3:
        assert np.array_equal(data.train.features.numpy(), images.transpose(0, 3, 1, 2))


def test_npz_test_split(npz_file):
    x, y = np.eye(3), [0, 1, 1]
    data = load(npz_file(x=x, y=y, x_test=x[:2], y_test=y[:2]))
    assert data.test is not None and len(data.test) == 2
    with pytest.raises(DataError, match="has test records of its own"):
        load(
            npz_file(x=x, y=y, x_test=x, y_test=y),
            test_fraction=0.5,
        )
    for arrays, reason in (
        ({"x_test": x}, "only one of x_test and y_test"),
        ({"x_test": x[:, :2], "y_test": y}, "Write both alike"),
        ({"x_test": x, "y_test": [0, 1, 2]}, "label in row 2"),
    ):
        with pytest.raises(DataError, match=reason):
            load(npz_file(x=x, y=y, **arrays))


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"a": np.eye(2)}, "neither x and y nor features and labels"),
        ({"x": np.eye(2), "y": [0]}, "2 records but 1 labels"),
        ({"x": np.eye(2), "y": [[0], [1]]}, "2 dimensions"),
        ({"x": np.eye(2), "y": [b"a", b"b"]}, "type .*S1"),
        ({"x": [["a"], ["b"]], "y": [0, 1]}, "features of type"),
        ({"x": np.ones((2, 3, 3)), "y": [0, 1]}, "images as uint8"),
        ({"x": np.ones((2, 5, 5, 2), np.uint8), "y": [0, 1]}, "1 or 3 channels"),
        ({"x": np.ones((0, 5, 5), np.uint8), "y": []}, "no images"),
        ({"x": np.ones((0, 5)), "y": []}, "no records"),
        ({"x": [[1.0], [np.inf]], "y": [0, 1]}, "row 1 .*column 0 is not a finite"),
        ({"x": np.eye(2), "y": np.array([0, 2**64 - 1], np.uint64)}, "row 1 .*too large"),
        ({"x": np.eye(2), "y": [0.0, np.nan]}, "row 1 .*whole number"),
    ],
)
def test_faulty_npz(npz_file, arrays, reason):
    with pytest.raises(DataError, match=reason):
        load(npz_file(**arrays))


def test_npz_pickle_does_not_run(tmp_path):
    mark = tmp_path / "executed"

    class Attack:
        def __reduce__(self):
            return open, (str(mark), "w")

    path = tmp_path / "mine.npz"
    np.savez(path, x=np.array([Attack()], object), y=[0], allow_pickle=True)
    with pytest.raises(DataError, match="refused"):
        load(str(path))
    path.write_bytes(pickle.dumps(Attack()))
    with pytest.raises(DataError, match="refused"):
        load(str(path))
    assert not mark.exists()


def test_npz_that_is_none(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.eye(50), y=np.arange(50))
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError, match=r"cannot be read as an \.npz"):
        load(str(path))
    np.save(tmp_path / "one.npy", np.eye(2))
    (tmp_path / "one.npy").replace(path)
    with pytest.raises(DataError, match="not an archive"):
        load(str(path))
