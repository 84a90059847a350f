"""A user's own arrays and tables: .npz, .csv and .parquet. No statistic of the data is computed.

Errors name the file, the row and the column, never the value found there: it may be private.
"""

from __future__ import annotations

import csv
import zipfile
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit.data.images import needed
from tacit.data.records import AnyArray, Table, checked_table, is_number, plain_labels
from tacit.errors import DataError


def _read_error(path: Path, error: BaseException, kind: str) -> DataError:
    return DataError(
        f"{path}: cannot be read as {kind} ({type(error).__name__}). The file is damaged, of "
        f"another kind than its name says, or may not be opened by this user; write it again."
    )


def _label_position(columns: Sequence[str], label_column: str | None, path: Path) -> int:
    if len(columns) < 2:
        raise DataError(
            f"{path}: has {len(columns)} column(s), but needs at least one feature and a label. "
            f"Separate columns by commas and name them in the first line."
        )
    if len(set(columns)) < len(columns):
        raise DataError(f"{path}: two columns have the same name. Rename or remove one of them.")
    if label_column is None:
        return list(columns).index("label") if "label" in columns else len(columns) - 1
    if label_column not in columns:
        raise DataError(
            f"{path}: label_column {label_column!r} is not among its columns "
            f"({', '.join(columns[:20])}{', …' if len(columns) > 20 else ''})."
        )
    return list(columns).index(label_column)


def read_csv(path: Path, label_column: str | None) -> Table:
    """A comma-separated table with a header; every cell but the labels is a number."""
    numbers = array("d")
    labels: list[str] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.reader(stream, strict=True)
            columns = [name.strip() for name in next(rows, [])]
            label_at = _label_position(columns, label_column, path)
            for cells in rows:
                if not cells:
                    continue
                if len(cells) != len(columns):
                    raise DataError(
                        f"{path}: row {len(labels) + 1} (counting from 1 after the header) has "
                        f"{len(cells)} cells, but the header has {len(columns)}. Repair the row."
                    )
                labels.append(cells.pop(label_at).strip())
                try:
                    numbers.extend([float(cell) for cell in cells])
                except ValueError:
                    at = next(i for i, cell in enumerate(cells) if not is_number(cell))
                    name = columns[at if at < label_at else at + 1]
                    reason = "not a number" if cells[at].strip() else "empty"
                    raise DataError(
                        f"{path}: row {len(labels)} (counting from 1 after the header), column "
                        f"{name!r} is {reason}. Features must be numbers; encode, repair or "
                        f"remove the column."
                    ) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _read_error(path, error, "a comma-separated table in UTF-8") from None
    features = np.array(numbers, np.float64).reshape(len(labels), len(columns) - 1)
    names = columns[:label_at] + columns[label_at + 1 :]
    return checked_table(features, np.array(labels, "U"), str(path), 1, names)


def read_parquet(path: Path, label_column: str | None) -> Table:
    """A Parquet file; every column but the labels is numeric, and no cell is missing."""
    arrow = needed("pyarrow", "pyarrow", "reading .parquet")
    parquet = needed("pyarrow.parquet", "pyarrow", "reading .parquet")
    try:
        with path.open("rb") as stream:
            content = parquet.ParquetFile(stream).read()
    except (OSError, arrow.ArrowException) as error:
        raise _read_error(path, error, "Parquet") from None
    columns = [str(name) for name in content.column_names]
    label_at = _label_position(columns, label_column, path)
    arrays: list[AnyArray] = []
    for name, column in zip(columns, content.columns, strict=True):
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))) + 1
            raise DataError(
                f"{path}: row {row} (counting from 1), column {name!r} is missing. Fill or remove "
                f"the row."
            )
        arrays.append(_arrow_values(arrow, column, name, path, label=name == columns[label_at]))
    labels = arrays.pop(label_at)
    features = np.column_stack(arrays)
    names = columns[:label_at] + columns[label_at + 1 :]
    return checked_table(features, labels, str(path), 1, names)


def _arrow_values(arrow: Any, column: Any, name: str, path: Path, *, label: bool) -> AnyArray:
    kind = arrow.types
    if kind.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if label and (kind.is_string(column.type) or kind.is_large_string(column.type)):
        return np.array(column.to_pylist(), "U")
    if kind.is_boolean(column.type):
        return np.asarray(column.to_numpy(), np.int64)
    if not (kind.is_integer(column.type) or kind.is_floating(column.type)):
        raise DataError(
            f"{path}: column {name!r} has type {column.type}. Features must be numbers, and "
            f"labels whole numbers or text; convert the column."
        )
    values: AnyArray = column.to_numpy()
    return values if label else values.astype(np.float64)


def read_npz(path: Path) -> tuple[Table, Table | None]:
    """Arrays x and y, or features and labels, with x_test and y_test alike; pickles are refused."""
    try:
        with path.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{path}: one array, not an archive. Write it with numpy.savez.")
            with archive:
                arrays = {name: archive[name] for name in archive.files if name in _NPZ_NAMES}
    except DataError:
        raise
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        if "pickle" in str(error):
            raise DataError(
                f"{path}: refused, because it holds Python objects, which may run code when read. "
                f"Write plain numbers or text with numpy.savez."
            ) from error
        raise _read_error(path, error, "an .npz archive") from None
    for x, y in (("x", "y"), ("features", "labels")):
        if x in arrays and y in arrays:
            train = _npz_table(arrays[x], arrays[y], f"{path} ({x}, {y})")
            return train, _npz_test(arrays, f"{x}_test", f"{y}_test", path)
    raise DataError(
        f"{path}: holds neither x and y nor features and labels. Write it with "
        f"numpy.savez(path, x=features, y=labels)."
    )


_NPZ_NAMES = {
    stem + suffix for stem in ("x", "y", "features", "labels") for suffix in ("", "_test")
}


def _npz_test(arrays: dict[str, AnyArray], x: str, y: str, path: Path) -> Table | None:
    if x not in arrays and y not in arrays:
        return None
    if x not in arrays or y not in arrays:
        raise DataError(f"{path}: only one of {x} and {y} is there. Write both or neither.")
    return _npz_table(arrays[x], arrays[y], f"{path} ({x}, {y})")


def _npz_table(features: AnyArray, labels: AnyArray, source: str) -> Table:
    if features.ndim and labels.ndim and len(features) != len(labels):
        raise DataError(
            f"{source}: {len(features)} records but {len(labels)} labels. Write one label per "
            f"record."
        )
    if features.dtype == np.uint8 and features.ndim in (3, 4):
        return _npz_images(features, labels, source)
    if features.ndim != 2 or features.dtype.kind not in "biuf" or not features.shape[1]:
        raise DataError(
            f"{source}: features of type {features.dtype} and shape {features.shape}. Give numbers "
            f"[records, columns], or images as uint8 [records, height, width] or "
            f"[records, channels, height, width]."
        )
    return checked_table(features, labels, source, 0, None)


def _npz_images(images: AnyArray, labels: AnyArray, source: str) -> Table:
    if not images.size:
        raise DataError(f"{source}: holds no images. Give at least one.")
    if images.ndim == 3:
        images = images[:, None]
    elif images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.shape[1] not in (1, 3):
        raise DataError(
            f"{source}: images of shape {images.shape[1:]}. Give 1 or 3 channels, as the first or "
            f"the last dimension of each image."
        )
    return Table(np.ascontiguousarray(images), plain_labels(labels, source, 0), source, 0)
