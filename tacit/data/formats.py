"""Readers for IDX files and CIFAR-10 batches, in folders or in archives read in place.

Nothing read here can run code: the pickled CIFAR-10 batches go through an unpickler that knows
three names, and even those only record what the file says.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import struct
import tarfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from tacit.data.places import IDX_STEMS, idx_file
from tacit.data.published import CIFAR_BINARY_SHA1, CIFAR_PYTHON_MD5
from tacit.errors import DataError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Pair = tuple[Images, Labels]

DAMAGE = (EOFError, OSError, zlib.error, tarfile.TarError)
_LARGEST_IDX = 1 << 30
_LARGEST_BATCH = 1 << 26
_PIXELS = 3 * 32 * 32


def damaged(path: Path, error: BaseException) -> DataError:
    """The error for a file that ends early, fails its own checksum or cannot be opened."""
    return DataError(
        f"{path}: cannot be read ({error}). The file is damaged or incomplete, or may not be "
        f"opened by this user; fetch it again with `tacit data fetch`."
    )


def in_range(labels: Labels, classes: int, path: Path) -> Labels:
    """The same labels, known to be 0..classes-1. For published data only: it names the label."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if wrong.size:
        first = int(wrong[0])
        raise DataError(
            f"{path}: record {first} (counting from 0) has label {int(labels[first])}, but labels "
            f"must be 0 to {classes - 1}. The file is damaged; fetch it again."
        )
    return labels


def _open_plain_or_gzip(path: Path) -> BinaryIO:
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path, "rb")) if packed else path.open("rb")


def read_idx(path: Path, dimensions: int) -> Images:
    """The unsigned bytes of one IDX file, shaped as its header says and complete."""
    magic = 0x0800 | dimensions
    header_size = 4 + 4 * dimensions
    try:
        with _open_plain_or_gzip(path) as stream:
            header = stream.read(header_size)
            found = int.from_bytes(header[:4], "big")
            if len(header) < header_size or found != magic:
                raise DataError(
                    f"{path}: starts with magic number {found}, but an IDX file of unsigned bytes "
                    f"in {dimensions} dimension(s) starts with {magic}. This is another file, or "
                    f"a damaged one; fetch it again."
                )
            shape = struct.unpack(f">{dimensions}I", header[4:])
            size = math.prod(shape)
            if size > _LARGEST_IDX:
                raise DataError(
                    f"{path}: its header promises {size} bytes, more than the {_LARGEST_IDX} read "
                    f"at most. The header is damaged; fetch the file again."
                )
            body = stream.read(size + 1)
    except DAMAGE as error:
        raise damaged(path, error) from error
    if len(body) != size:
        extent = "more" if len(body) > size else f"only {len(body)}"
        raise DataError(
            f"{path}: its header promises {size} bytes but there are {extent}. The file is "
            f"damaged or incomplete; fetch it again."
        )
    return np.frombuffer(body, np.uint8).reshape(shape)


def _read_idx_pair(folder: Path, images_stem: str, labels_stem: str, classes: int) -> Pair:
    paths = []
    for stem in (images_stem, labels_stem):
        path = idx_file(folder, stem)
        if path is None:
            raise DataError(
                f"{folder / stem}.gz: missing, also without .gz, though other files of the "
                f"dataset are there. Fetch it with `tacit data fetch`."
            )
        paths.append(path)
    images = read_idx(paths[0], 3)
    labels = in_range(read_idx(paths[1], 1).astype(np.int64), classes, paths[1])
    if len(images) != len(labels):
        raise DataError(
            f"{paths[0]}: has {len(images)} images but {paths[1]} has {len(labels)} labels. The "
            f"two files do not belong together; fetch both again."
        )
    if not len(images):
        raise DataError(f"{paths[0]}: holds no images. Fetch it again with `tacit data fetch`.")
    return images[:, None], labels


def read_idx_folder(folder: Path, classes: int, shape: tuple[int, ...]) -> tuple[Pair, Pair]:
    """Training and test images [n, 1, height, width] with labels in range, equally many of each."""
    train = _read_idx_pair(folder, IDX_STEMS[0], IDX_STEMS[1], classes)
    test = _read_idx_pair(folder, IDX_STEMS[2], IDX_STEMS[3], classes)
    for images, _ in (train, test):
        if images.shape[1:] != shape:
            raise DataError(
                f"{folder}: images are {images.shape[2]}x{images.shape[3]} pixels, but this "
                f"dataset has {shape[1]}x{shape[2]}. This is another dataset; fetch the right one."
            )
    return train, test


def batch_files(path: Path, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Name and content of each wanted file in a folder or .tar.gz; nothing is extracted to disk."""
    seen = set()
    try:
        if path.is_dir():
            for name in names:
                if (path / name).is_file():
                    _refuse_oversized(path / name, (path / name).stat().st_size)
                    seen.add(name)
                    yield name, (path / name).read_bytes()
        else:
            with tarfile.open(path, "r:gz") as archive:
                for member in archive:
                    name = member.name.rpartition("/")[2]
                    if name not in names or name in seen or not member.isfile():
                        continue
                    _refuse_oversized(path / name, member.size)
                    stream = archive.extractfile(member)
                    if stream is not None:
                        seen.add(name)
                        yield name, stream.read()
    except DAMAGE as error:
        raise damaged(path, error) from error
    missing = [name for name in names if name not in seen]
    if missing:
        raise DataError(
            f"{path}: {', '.join(missing)} missing. Fetch the whole dataset with "
            f"`tacit data fetch cifar-10`."
        )


def _refuse_oversized(path: Path, size: int) -> None:
    if size > _LARGEST_BATCH:
        raise DataError(
            f"{path}: {size} bytes, but a CIFAR-10 batch has about 31 million. This is another "
            f"file; fetch the right one with `tacit data fetch cifar-10`."
        )


class _PickledArray:
    """Stands in for a numpy array while a batch is read: records the state, runs nothing."""

    state: object = None

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        self.state = state


class _PickledType(_PickledArray):
    """Stands in for a numpy dtype: records what kind of number the file says it holds."""

    def __init__(self, *arguments: object) -> None:
        self.kind = arguments[0] if arguments else None


class _BatchUnpickler(pickle.Unpickler):
    """Knows the names in a CIFAR-10 batch and refuses every other before anything is called."""

    _KNOWN: ClassVar = {
        ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
        ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
        ("numpy", "ndarray"): _PickledArray,
        ("numpy", "dtype"): _PickledType,
    }

    def __init__(self, content: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._path = path

    def find_class(self, module_name: str, global_name: str) -> type[_PickledArray]:
        known = self._KNOWN.get((module_name, global_name))
        if known is None:
            raise DataError(
                f"{self._path}: refused, because the pickle asks for "
                f"{module_name + '.' + global_name!r}, which no CIFAR-10 batch needs. None of it "
                f"was run. Fetch the original with `tacit data fetch cifar-10`."
            )
        return known


def decode_python_batch(content: bytes, path: Path) -> Pair:
    """Images and labels of one pickled batch, read without running anything in it."""
    try:
        batch = _BatchUnpickler(content, path).load()
    except DataError:
        raise
    except (
        pickle.UnpicklingError,
        ArithmeticError,
        AttributeError,
        EOFError,
        LookupError,
        MemoryError,
        TypeError,
        ValueError,
    ) as error:
        raise damaged(path, error) from error
    fields = batch if isinstance(batch, dict) else {}
    pixels = _array_content(fields.get(b"data", fields.get("data")))
    labels = fields.get(b"labels", fields.get("labels"))
    if pixels is None or not isinstance(labels, list) or not all(type(x) is int for x in labels):
        raise DataError(
            f"{path}: not a CIFAR-10 batch, which holds 'data', an array of unsigned bytes with "
            f"{_PIXELS} columns, and 'labels', a list of integers. Fetch the original with "
            f"`tacit data fetch cifar-10`."
        )
    if len(pixels) != len(labels):
        raise DataError(
            f"{path}: has {len(pixels)} images but {len(labels)} labels. The file is damaged; "
            f"fetch it again."
        )
    clipped = [label if 0 <= label < 256 else -1 for label in labels]
    return pixels.reshape(-1, 3, 32, 32), np.array(clipped, np.int64)


def _array_content(array: object) -> Images | None:
    state = getattr(array, "state", None) if type(array) is _PickledArray else None
    if not isinstance(state, tuple) or len(state) != 5:
        return None
    _, shape, kind, by_columns, raw = state
    if type(kind) is not _PickledType or kind.kind not in (b"u1", "u1", b"|u1", "|u1"):
        return None
    if not isinstance(raw, bytes) or shape != (len(raw) // _PIXELS, _PIXELS) or len(raw) % _PIXELS:
        return None
    flat: Images = np.frombuffer(raw, np.uint8)
    return flat.reshape((-1, _PIXELS), order="F" if by_columns else "C")


def decode_binary_batch(content: bytes, path: Path) -> Pair:
    """Images and labels of one binary batch: a label byte, then 3072 pixels, per record."""
    if len(content) % (1 + _PIXELS):
        raise DataError(
            f"{path}: {len(content)} bytes, which is not a whole number of {1 + _PIXELS}-byte "
            f"records. The file is damaged or incomplete; fetch it again."
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + _PIXELS)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def read_cifar(path: Path, *, pickled: bool, classes: int) -> tuple[Pair, Pair]:
    """Training and test images [n, 3, 32, 32] with labels, from a folder or an archive."""
    names = CIFAR_PYTHON_MD5 if pickled else CIFAR_BINARY_SHA1
    decode = decode_python_batch if pickled else decode_binary_batch
    parts: dict[str, Pair] = {}
    for name, content in batch_files(path, names):
        images, labels = decode(content, path / name)
        if not len(images):
            raise DataError(f"{path / name}: holds no images. Fetch it again.")
        parts[name] = images, in_range(labels, classes, path / name)
    train = [parts[name] for name in names if name.startswith("data_batch")]
    test = next(parts[name] for name in names if name.startswith("test_batch"))
    return (
        (np.concatenate([part[0] for part in train]), np.concatenate([part[1] for part in train])),
        test,
    )
