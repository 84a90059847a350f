"""Folders of images: layouts, colour, sizes and files that are no images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tacit.data import datasets
from tacit.data.datasets import Data, DataOptions
from tacit.errors import ArgumentError, DataError


def load(source: str, **options: object) -> Data:
    """Own records; their classes come from the labels unless the test says otherwise."""
    return datasets.load(source, options=DataOptions(**{"classes": "from-labels", **options}))


@pytest.fixture
def picture(tmp_path):
    def write(relative: str, mode: str = "L", size: tuple[int, int] = (6, 4), value: int = 0):
        path = tmp_path / "pictures" / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.new(mode, size)
        if mode in ("L", "RGB"):
            image.putpixel((0, 0), value if mode == "L" else (value, 0, 0))
        image.save(path)
        return path

    return write


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "pictures"


def test_plain_classes(picture, folder):
    picture("dog/1.png", value=10)
    picture("cat/2.png", value=20)
    picture("cat/1.bmp", value=30)
    (folder / "cat/.DS_Store").write_bytes(b"hidden")
    data = load(str(folder))
    assert data.class_names == ("cat", "dog") and data.kind == "image"
    assert data.train.labels.tolist() == [0, 0, 1]
    assert data.train.features.shape == (3, 1, 4, 6)
    assert data.train.features[:, 0, 0, 0].tolist() == [30, 20, 10]
    assert data.mean == data.std == (0.5,) and data.test is None
    assert data.name == "pictures" and data.found_at == str(folder)


def test_train_and_test_folders(picture, folder):
    for split in ("train", "test"):
        picture(f"{split}/cat/1.png")
        picture(f"{split}/dog/1.png")
    picture("validation/other/1.png")
    data = load(str(folder))
    assert data.test is not None and len(data.train) == len(data.test) == 2
    with pytest.raises(DataError, match="test records of its own"):
        load(str(folder), test_fraction=0.5)
    picture("test/bird/1.png")
    with pytest.raises(DataError, match="bird: none of the 2 classes"):
        load(str(folder))


def test_classes_of_a_folder_are_stated(picture, folder):
    picture("dog/1.png")
    picture("cat/1.png")
    with pytest.raises(ArgumentError, match="is not given"):
        datasets.load(str(folder))
    data = load(str(folder), classes=["dog", "bird", "cat"])
    assert data.class_names == ("dog", "bird", "cat") and data.train.labels.tolist() == [2, 0]
    assert not any("set of labels" in sentence for sentence in data.treated_as_public)
    assert any("set of labels" in sentence for sentence in load(str(folder)).treated_as_public)
    for classes in (["dog", "bird"], 2):
        with pytest.raises(DataError, match="cat: none of the 2 classes"):
            load(str(folder), classes=classes)


def test_numbered_folders(picture, folder):
    for label in (10, 2):
        picture(f"{label}/1.png")
    data = load(str(folder), classes=12)
    assert data.classes == 12 and sorted(data.train.labels.tolist()) == [2, 10]


def test_one_colour_image_does_not_change_the_shape_of_the_rest(picture, folder):
    picture("cat/1.png", value=9)
    picture("dog/1.png", mode="RGB", value=7)
    picture("dog/2.png", mode="RGBA")
    picture("dog/3.gif", mode="P")
    with pytest.raises(DataError, match=r"dog/1\.png: in colour, .*1\.png is greyscale.*channels"):
        load(str(folder))
    data = load(str(folder), channels=3)
    assert data.input_shape == (3, 4, 6) and data.mean == (0.5, 0.5, 0.5)
    assert data.train.features[0, :, 0, 0].tolist() == [9, 9, 9]
    assert data.train.features[1, :, 0, 0].tolist() == [7, 0, 0]
    assert load(str(folder), channels=1).input_shape == (1, 4, 6)
    (folder / "cat/1.png").unlink()
    assert load(str(folder)).input_shape == (3, 4, 6)


def test_mixed_sizes(picture, folder):
    picture("cat/1.png")
    picture("dog/1.png", size=(5, 5))
    with pytest.raises(DataError, match=r"dog/1\.png: 5x5 pixels, .*6x4.*image_size"):
        load(str(folder))
    data = load(str(folder), image_size=8)
    assert data.input_shape == (1, 8, 8)


def test_unreadable_images(picture, folder):
    picture("cat/1.png")
    broken = picture("dog/1.png", size=(60, 40), mode="RGB")
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)
    Image.fromarray(noise).save(broken)
    whole = broken.read_bytes()
    for content in (b"", b"no image", whole[:30], whole[: len(whole) // 2]):
        broken.write_bytes(content)
        with pytest.raises(DataError, match=r"dog/1\.png: not a readable image"):
            load(str(folder), image_size=4, channels=3)


def test_program_running_formats_are_refused(picture, folder):
    picture("cat/1.png")
    picture("dog/1.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n")
    with pytest.raises(DataError, match="not a readable image"):
        load(str(folder))


def test_sixteen_bits_are_refused(picture, folder):
    picture("cat/1.png")
    picture("dog/1.png", mode="I;16")
    with pytest.raises(DataError, match="8 bits"):
        load(str(folder))


def test_empty_folders(picture, folder):
    folder.mkdir()
    with pytest.raises(DataError, match="no class folders"):
        load(str(folder))
    (folder / "cat").mkdir()
    (folder / "dog").mkdir()
    with pytest.raises(DataError, match="hold no images"):
        load(str(folder))
    picture("cat/1.png")
    assert load(str(folder)).class_names == ("cat", "dog")
    (folder / "dog").rmdir()
    with pytest.raises(DataError, match="only one class"):
        load(str(folder))


def test_stray_file(picture, folder):
    picture("cat/1.png")
    picture("dog/1.png")
    (folder / "dog/notes.txt").write_text("stray")
    with pytest.raises(DataError, match=r"notes\.txt: not one of the image files"):
        load(str(folder))
