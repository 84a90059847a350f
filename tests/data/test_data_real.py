"""The published datasets themselves; run with TACIT_REALDATA naming the folder that holds them."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.data.catalog import catalog, check
from tacit.data.datasets import load
from tacit.data.places import find
from tacit.data.published import DATASETS

_FOLDER = os.environ.get("TACIT_REALDATA")
pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(not _FOLDER, reason="TACIT_REALDATA does not name a folder with the data"),
]
NAMES = [name for name, published in DATASETS.items() if published.downloads]


@pytest.fixture
def folder() -> Path:
    return Path(_FOLDER or "")


@pytest.mark.parametrize("name", NAMES)
def test_published_data_is_intact(name, folder):
    if find(name, folder) is None:
        pytest.skip(f"{name} is not in {folder}")
    report = check(name, folder)
    assert report.problems == ()
    assert (report.train_records, report.test_records) == (
        DATASETS[name].train_records,
        DATASETS[name].test_records,
    )


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar-10"])
def test_published_constants_fit(name, folder):
    if find(name, folder) is None:
        pytest.skip(f"{name} is not in {folder}")
    data = load(name, data_dir=folder)
    for channel, (mean, std) in enumerate(zip(data.mean, data.std, strict=True)):
        pixels = data.train.features[:, channel].to(torch.float32) / 255
        assert float(pixels.mean()) == pytest.approx(mean, abs=2e-4)
        assert float(pixels.std()) == pytest.approx(std, abs=2e-3)


def test_catalog_lists_what_is_there(folder):
    for entry in catalog(folder):
        assert (entry.found is None) == (find(entry.name, folder) is None)


def test_reviews_load_quickly(folder):
    if find("imdb", folder) is None:
        pytest.skip(f"imdb is not in {folder}")
    start = time.perf_counter()
    data = load("imdb", data_dir=folder)
    assert time.perf_counter() - start < 45
    assert len(data.train) == 25_000
    words = (data.train.features != 0).sum(1)
    assert int(words.min()) >= 1 and int(words.max()) == 256


def test_first_cifar_batch_repickled(folder, tmp_path, pickle_like_python2):
    source = folder / "cifar-10-batches-bin"
    if not source.is_dir():
        pytest.skip(f"{source} is not there")
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz", compresslevel=1) as archive:
        for path in sorted(source.glob("*.bin")):
            rows = np.fromfile(path, np.uint8).reshape(-1, 3073)[:500]
            content = pickle_like_python2(rows[:, 1:], rows[:, 0].tolist())
            member = tarfile.TarInfo(f"cifar-10-batches-py/{path.stem}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    pickled, binary = load("cifar-10", data_dir=tmp_path), load("cifar-10", data_dir=folder)
    assert torch.equal(pickled.train.features[:500], binary.train.features[:500])
    assert torch.equal(pickled.train.labels[:500], binary.train.labels[:500])
