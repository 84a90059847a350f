"""IDX and CIFAR-10 files: every layout reads the same, and every kind of damage is named."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data.datasets import load
from tacit.data.formats import decode_python_batch
from tacit.errors import DataError


@pytest.mark.parametrize(
    ("name", "folder", "packed"),
    [
        ("mnist", "mnist", True),
        ("mnist", "mnist", False),
        ("mnist", "MNIST/raw", False),
        ("fashion-mnist", "fashion-mnist", True),
        ("fashion-mnist", "FashionMNIST/raw", True),
    ],
)
def test_idx_layouts(write, name, folder, packed):
    target = write.idx(folder, packed=packed)
    data = load(name, data_dir=write.root)
    assert data.train.features.shape == (20, 1, 28, 28)
    assert data.train.features.dtype == torch.uint8
    assert data.train.labels.tolist() == [i % 10 for i in range(20)]
    assert data.test is not None and len(data.test) == 5
    assert data.kind == "image" and data.classes == 10 and data.input_shape == (1, 28, 28)
    assert len(data.mean) == len(data.std) == 1
    assert data.found_at == str(target)
    assert load(name, data_dir=target).found_at == str(target)


def test_idx_pixels_survive(write):
    folder = write.idx("mnist")
    raw = gzip.decompress((folder / "train-images-idx3-ubyte.gz").read_bytes())[16:]
    assert load("mnist", data_dir=write.root).train.features.numpy().tobytes() == raw


def test_dotted_idx_names(write):
    folder = write.idx("mnist", packed=False)
    for file in list(folder.iterdir()):
        file.rename(file.with_name(file.name.replace("-idx", ".idx")))
    assert len(load("mnist", data_dir=write.root).train) == 20


def test_mnist_folder_is_not_fashion(write):
    write.idx("mnist")
    with pytest.raises(DataError, match=r"fashion-mnist.*not found"):
        load("fashion-mnist", data_dir=write.root / "mnist")


def _break_idx(write, stem: str, change) -> Path:
    path = write.idx("mnist") / f"{stem}.gz"
    path.write_bytes(change(path.read_bytes()))
    return path


def _repacked(change):
    return lambda packed: gzip.compress(change(gzip.decompress(packed)))


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("stem", "change", "reason"),
    [
        (IMAGES, lambda packed: packed[: len(packed) // 2], "damaged or incomplete"),
        (IMAGES, lambda packed: packed[:-8] + b"\0\0\0\0" + packed[-4:], "CRC"),
        (IMAGES, lambda packed: b"", "magic number 0"),
        (IMAGES, _repacked(lambda raw: b"\0\0\x08\x01" + raw[4:]), "magic number 2049.*2051"),
        (IMAGES, _repacked(lambda raw: raw[:-1]), "only 15679"),
        (IMAGES, _repacked(lambda raw: raw + b"\0"), "there are more"),
        (IMAGES, _repacked(lambda raw: raw[:4] + b"\xff" * 12 + raw[16:]), "header"),
        (
            IMAGES,
            _repacked(lambda raw: raw[:8] + struct.pack(">II", 14, 56) + raw[16:]),
            "14x56 pixels.*28x28",
        ),
        (LABELS, _repacked(lambda raw: raw[:11] + b"\x11" + raw[12:]), "record 3 .*label 17"),
        (
            LABELS,
            _repacked(lambda raw: raw[:4] + struct.pack(">I", 19) + raw[8:-1]),
            "20 images but .* 19 labels",
        ),
    ],
)
def test_damaged_idx(write, stem, change, reason):
    path = _break_idx(write, stem, change)
    with pytest.raises(DataError, match=reason) as raised:
        load("mnist", data_dir=write.root)
    assert str(path.parent) in str(raised.value)
    assert "fetch" in str(raised.value)


def test_missing_and_empty_idx(write):
    folder = write.idx("mnist", train=0)
    with pytest.raises(DataError, match="holds no images"):
        load("mnist", data_dir=write.root)
    (folder / f"{LABELS}.gz").unlink()
    with pytest.raises(DataError, match=f"{LABELS}.gz: missing"):
        load("mnist", data_dir=write.root)


def test_cifar_layouts_agree(write):
    binary = write.cifar_binary_files()
    write.folder("folder/cifar-10-batches-bin", binary)
    (write.root / "packed").mkdir()
    write.archive("packed/cifar-10-binary.tar.gz", "cifar-10-batches-bin", binary)
    folder = load("cifar-10", data_dir=write.root / "folder")
    packed = load("cifar-10", data_dir=write.root / "packed")
    assert folder.train.features.shape == (20, 3, 32, 32)
    assert folder.test is not None and packed.test is not None
    assert torch.equal(folder.train.features, packed.train.features)
    assert torch.equal(folder.test.features, packed.test.features)
    assert torch.equal(folder.train.labels, packed.train.labels)
    first = np.frombuffer(binary["data_batch_1.bin"], np.uint8)[1:3073]
    assert folder.train.features[0].numpy().tobytes() == first.tobytes()


@pytest.mark.parametrize("packed", [False, True])
def test_cifar_python_batches(write, packed):
    files = {**write.cifar_python_files(), "readme.html": b"<p>", "batches.meta": b"ignored"}
    if packed:
        write.archive("cifar-10-python.tar.gz", "cifar-10-batches-py", files)
    else:
        write.folder("cifar-10-batches-py", files)
    data = load("cifar-10", data_dir=write.root)
    assert data.train.features.shape == (20, 3, 32, 32)
    assert data.train.labels.tolist() == [0, 1, 2, 3] * 5
    assert data.class_names[3] == "cat"


def test_python_batch_equals_numpy(pickle_like_python2):
    pixels = np.random.default_rng(1).integers(0, 256, (3, 3072)).astype(np.uint8)
    content = pickle_like_python2(pixels, [1, 2, 3])
    reference = pickle.loads(content, encoding="bytes")
    assert np.array_equal(reference[b"data"], pixels)
    images, labels = decode_python_batch(content, Path("batch"))
    assert np.array_equal(images.reshape(3, -1), pixels) and labels.tolist() == [1, 2, 3]
    by_columns = {"data": np.asfortranarray(pixels), "labels": [1, 2, 3]}
    images, _ = decode_python_batch(pickle.dumps(by_columns, protocol=4), Path("batch"))
    assert np.array_equal(images.reshape(3, -1), pixels)


class _Runs:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_malicious_pickle_does_not_run(write, tmp_path):
    mark = tmp_path / "executed"
    attacks = [
        _Runs(os.system, f"touch {mark}"),
        _Runs(eval, f"open({str(mark)!r}, 'w')"),
        _Runs(getattr, "text", "upper"),
        _Runs(np.fromfile, str(mark)),
        _Runs(io.open, str(mark), "w"),
    ]
    for attack in attacks:
        for protocol in (0, 2, 4):
            for content in ({b"data": attack}, [attack], attack):
                with pytest.raises(DataError, match=r"refused.*None of it was run"):
                    decode_python_batch(pickle.dumps(content, protocol), Path("data_batch_1"))
    files = write.cifar_python_files()
    files["data_batch_3"] = pickle.dumps(attacks[0])
    write.folder("cifar-10-batches-py", files)
    with pytest.raises(DataError, match="data_batch_3: refused"):
        load("cifar-10", data_dir=write.root)
    assert not mark.exists()


def test_persistent_and_extension_pickles_are_refused():
    for content in (b"Pname\n.", b"\x80\x02\x82\x01.", b"\x80\x02(lp0\nQ."):
        with pytest.raises(DataError):
            decode_python_batch(content, Path("batch"))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 400))
def test_damaged_pickles_only_raise_data_errors(tail, keep):
    whole = pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1]}, protocol=4)
    with pytest.raises(DataError):
        decode_python_batch(whole[:keep] + tail, Path("batch"))


@pytest.mark.parametrize(
    "batch",
    [
        [],
        {b"data": 1, b"labels": [1]},
        {b"data": np.zeros((1, 3072), np.float32), b"labels": [1]},
        {b"data": np.zeros((1, 3071), np.uint8), b"labels": [1]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": "1"},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": [1, 2]},
    ],
)
def test_other_pickles_are_not_batches(batch):
    with pytest.raises(DataError, match="batch"):
        decode_python_batch(pickle.dumps(batch, protocol=4), Path("batch"))


def test_damaged_cifar(write):
    files = write.cifar_binary_files()
    folder = write.folder("cifar-10-batches-bin", files)
    batch = folder / "data_batch_2.bin"
    for content, reason in (
        (files["data_batch_2.bin"][:-5], "whole number of 3073-byte"),
        (b"\x0b" + files["data_batch_2.bin"][1:], "record 0 .*label 11"),
        (b"", "holds no images"),
    ):
        batch.write_bytes(content)
        with pytest.raises(DataError, match=f"data_batch_2.bin: .*{reason}"):
            load("cifar-10", data_dir=write.root)
    batch.unlink()
    with pytest.raises(DataError, match=r"data_batch_2\.bin missing"):
        load("cifar-10", data_dir=write.root)


def test_truncated_cifar_archive(write):
    path = write.archive("cifar-10-binary.tar.gz", "top", write.cifar_binary_files())
    path.write_bytes(path.read_bytes()[:40_000])
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz"):
        load("cifar-10", data_dir=write.root)
    path.write_bytes(b"not an archive")
    with pytest.raises(DataError, match="cannot be read"):
        load("cifar-10", data_dir=write.root)
