"""Writers of tiny datasets in every layout, and isolation from datasets on this machine."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

STEMS = {"train": "train", "test": "t10k"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "realdata: needs the published datasets (TACIT_REALDATA)")


@pytest.fixture(autouse=True)
def _nothing_found_by_chance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TACIT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no-cache"))
    monkeypatch.setattr("tacit.data.places.SYSTEM_FOLDER", tmp_path / "no-system")


class Writer:
    """Writes datasets of a few random records below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.random = np.random.default_rng(7)

    def idx_bytes(self, values: np.ndarray) -> bytes:
        header = struct.pack(f">I{values.ndim}I", 0x0800 | values.ndim, *values.shape)
        return header + values.astype(np.uint8).tobytes()

    def idx(self, folder: str, *, train: int = 20, test: int = 5, packed: bool = True) -> Path:
        target = self.root / folder
        target.mkdir(parents=True, exist_ok=True)
        for split, count in (("train", train), ("test", test)):
            images = self.random.integers(0, 256, (count, 28, 28))
            labels = np.arange(count) % 10
            for stem, values in (("images-idx3", images), ("labels-idx1", labels)):
                content = self.idx_bytes(values)
                name = f"{STEMS[split]}-{stem}-ubyte"
                if packed:
                    (target / f"{name}.gz").write_bytes(gzip.compress(content, 1))
                else:
                    (target / name).write_bytes(content)
        return target

    def cifar_arrays(self, count: int = 4) -> list[tuple[np.ndarray, np.ndarray]]:
        return [
            (self.random.integers(0, 256, (count, 3072)).astype(np.uint8), np.arange(count) % 10)
            for _ in range(6)
        ]

    def cifar_binary_files(self) -> dict[str, bytes]:
        names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
        return {
            name: np.column_stack([labels.astype(np.uint8), pixels]).tobytes()
            for name, (pixels, labels) in zip(names, self.cifar_arrays(), strict=True)
        }

    def cifar_python_files(self) -> dict[str, bytes]:
        names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
        return {
            name: python2_batch(pixels, labels.tolist())
            for name, (pixels, labels) in zip(names, self.cifar_arrays(), strict=True)
        }

    def folder(self, name: str, files: dict[str, bytes]) -> Path:
        for relative, content in files.items():
            target = self.root / name / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        return self.root / name

    def archive(self, name: str, top: str, files: dict[str, bytes]) -> Path:
        with tarfile.open(self.root / name, "w:gz") as archive:
            for relative, content in files.items():
                member = tarfile.TarInfo(f"{top}/{relative}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return self.root / name

    def imdb_files(self, per_side: int = 3) -> dict[str, bytes]:
        return {
            f"{split}/{side}/{number}_{rating}.txt": f"A {word} film!<br /><br />No. {number}, "
            f"{split}.".encode()
            for split in ("train", "test")
            for side, rating, word in (("pos", 9, "GOOD"), ("neg", 2, "bad"))
            for number in range(per_side)
        }


def python2_batch(pixels: np.ndarray, labels: list[int]) -> bytes:
    """A batch pickled the way Python 2 and its numpy did it, as the publisher ships them."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    reconstruct = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
    empty = reconstruct + number(0) + b"\x85" + text(b"b") + b"\x87R"
    state = text(b"|") + b"NNN" + number(-1) + number(-1) + number(0)
    kind = b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
    kind += b"(" + number(3) + state + b"tb"
    shape = number(pixels.shape[0]) + number(pixels.shape[1]) + b"\x86"
    raw = pixels.tobytes()
    content = b"T" + struct.pack("<i", len(raw)) + raw
    array = empty + b"(" + number(1) + shape + kind + b"\x89" + content + b"tb"
    items = text(b"batch_label") + text(b"training batch 1 of 5")
    items += text(b"labels") + b"](" + b"".join(number(label) for label in labels) + b"e"
    items += text(b"data") + array
    return b"\x80\x02}(" + items + b"u."


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    root = tmp_path / "data"
    root.mkdir()
    return Writer(root)


@pytest.fixture
def pickle_like_python2() -> object:
    return python2_batch
