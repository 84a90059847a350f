"""A user's own arrays and tables: .npz, .csv and .parquet. No statistic of the data is computed.

Errors name the file, the row and the column, never the value found there: it may be private.
"""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tacit.data.images import needed
from tacit.data.records import AnyArray, Table, checked_table, is_number, row_name
from tacit.errors import DataError


def _read_error(path: Path, error: BaseException, kind: str) -> DataError:
    return DataError(
        f"{path}: cannot be read as {kind} ({type(error).__name__}). The file is damaged, of "
        f"another kind than its name says, or may not be opened by this user; write it again."
    )


@dataclass(frozen=True)
class _Columns:
    """The columns of a table: where the label is, and where the text is, if that is read."""

    names: list[str]
    label: int
    text: int | None

    @property
    def features(self) -> list[int]:
        """Positions of the columns that are read, without the label."""
        if self.text is not None:
            return [self.text]
        return [at for at in range(len(self.names)) if at != self.label]


def _columns(
    names: list[str], label_column: str | None, text_column: str | None, path: Path
) -> _Columns:
    if len(names) < 2:
        raise DataError(
            f"{path}: has {len(names)} column(s), but needs at least one feature and a label. "
            f"Separate columns by commas and name them in the first line."
        )
    if len(set(names)) < len(names):
        raise DataError(f"{path}: two columns have the same name. Rename or remove one of them.")
    for option, name in (("label_column", label_column), ("text_column", text_column)):
        if name is not None and name not in names:
            raise DataError(
                f"{path}: {option} {name!r} is not among its columns "
                f"({', '.join(names[:20])}{', …' if len(names) > 20 else ''})."
            )
    text = None if text_column is None else names.index(text_column)
    chosen = label_column or ("label" if "label" in names else names[-1])
    label = names.index(chosen)
    if label == text:
        raise DataError(
            f"{path}: column {chosen!r} is both text and label. Name another with label_column."
        )
    return _Columns(names, label, text)


def read_csv(path: Path, label_column: str | None, text_column: str | None = None) -> Table:
    """A comma-separated table with a header; every cell but the labels is a number.

    With `text_column`, that column holds texts and all others but the labels are left out.
    """
    numbers = array("d")
    texts: list[str] = []
    labels: list[str] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.reader(stream, strict=True)
            header = [name.strip() for name in next(rows, [])]
            columns = _columns(header, label_column, text_column, path)
            wanted = columns.features
            for cells in rows:
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise DataError(
                        f"{path}: {_csv_row(len(labels))} has {len(cells)} cells, but the header "
                        f"has {len(header)}. Repair the row."
                    )
                if columns.text is not None:
                    texts.append(cells[columns.text])
                else:
                    try:
                        numbers.extend([float(cells[at]) for at in wanted])
                    except ValueError:
                        raise _no_number(path, cells, columns, len(labels)) from None
                labels.append(cells[columns.label].strip())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _read_error(path, error, "a comma-separated table in UTF-8") from None
    if columns.text is not None:
        features: AnyArray = np.array(texts, object)
    else:
        features = np.array(numbers, np.float64).reshape(len(labels), len(wanted))
    names = [header[at] for at in wanted]
    return checked_table(features, np.array(labels, "U"), str(path), 1, names)


def _csv_row(index: int) -> str:
    return f"row {index + 1} (counting from 1 after the header)"


def _no_number(path: Path, cells: list[str], columns: _Columns, row: int) -> DataError:
    at = next(at for at in columns.features if not is_number(cells[at]))
    reason = "not a number" if cells[at].strip() else "empty"
    return DataError(
        f"{path}: {_csv_row(row)}, column {columns.names[at]!r} is {reason}. Features must be "
        f"numbers; encode, repair or remove the column, or name it with text_column if it holds "
        f"the texts to train on. Labels are read from {columns.names[columns.label]!r}; "
        f"label_column names another."
    )


def read_parquet(path: Path, label_column: str | None, text_column: str | None = None) -> Table:
    """A Parquet file; every column but the labels is numeric, and no cell is missing.

    With `text_column`, that column holds texts and all others but the labels are left out.
    """
    arrow = needed("pyarrow", "pyarrow", "reading .parquet")
    parquet = needed("pyarrow.parquet", "pyarrow", "reading .parquet")
    try:
        with path.open("rb") as stream:
            content = parquet.ParquetFile(stream).read()
    except (OSError, arrow.ArrowException) as error:
        raise _read_error(path, error, "Parquet") from None
    header = [str(name) for name in content.column_names]
    columns = _columns(header, label_column, text_column, path)

    def values(at: int) -> AnyArray:
        return _arrow_values(arrow, content.column(at), columns, at, path)

    labels = values(columns.label)
    arrays = [values(at) for at in columns.features]
    features = arrays[0] if columns.text is not None else np.column_stack(arrays)
    names = [header[at] for at in columns.features]
    return checked_table(features, labels, str(path), 1, names)


def _arrow_values(arrow: Any, column: Any, columns: _Columns, at: int, path: Path) -> AnyArray:
    kind, name = arrow.types, columns.names[at]
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(
            f"{path}: {row_name(row, 1)}, column {name!r} is missing. Fill or remove the row."
        )
    if kind.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    is_text = kind.is_string(column.type) or kind.is_large_string(column.type)
    if is_text and at == columns.label:
        return np.array(column.to_pylist(), "U")
    if is_text and at == columns.text:
        return np.array(column.to_pylist(), object)
    if kind.is_boolean(column.type) and at != columns.text:
        return np.asarray(column.to_numpy(), np.int64)
    is_number_type = kind.is_integer(column.type) or kind.is_floating(column.type)
    if at == columns.text or not is_number_type:
        raise DataError(
            f"{path}: column {name!r} has type {column.type}. Features must be numbers, or text "
            f"in the column named by text_column, and labels whole numbers or text; convert the "
            f"column."
        )
    numbers: AnyArray = column.to_numpy()
    return numbers if at == columns.label else numbers.astype(np.float64)


def contents_of(path: Path) -> bytes:
    """The bytes of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise _read_error(path, error, "an .npz archive") from None


def read_npz(path: Path, contents: bytes) -> tuple[Table, Table | None]:
    """Arrays x and y, or features and labels, with x_test and y_test alike; pickles are refused.

    `contents` are the bytes of the file, read once so that what they are is known of them.
    """
    try:
        archive = np.load(io.BytesIO(contents), allow_pickle=False)
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
    return Table(np.ascontiguousarray(images), labels, source, 0)
