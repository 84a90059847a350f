"""Records of a user's own, checked: finite features, and labels that name a class.

Messages name the source, the row and the column, never the value found there: it may be private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import DataError

MOST_CLASSES = 1000
SPLIT_SEED = 20_170_814
"""Seed of the division into training and test records; public, so it hides nothing."""

AnyArray = NDArray[Any]
_LABELS_HELP = "Labels are whole numbers from 0, or class names."


@dataclass(frozen=True)
class Table:
    """Features [n, columns], or images if uint8 in four dimensions, and labels not yet encoded."""

    features: AnyArray
    labels: AnyArray
    source: str
    first_row: int


def _row(index: int, first_row: int) -> str:
    return f"row {index + first_row} (counting from {first_row})"


def checked_table(
    features: AnyArray, labels: AnyArray, source: str, first_row: int, columns: Sequence[str] | None
) -> Table:
    """A table with at least one record, finite features and labels of one usable kind."""
    if not len(features):
        raise DataError(f"{source}: holds no records. Give a file with at least one.")
    finite = _finite(features, columns, source, first_row)
    return Table(finite, plain_labels(labels, source, first_row), source, first_row)


def _finite(
    features: AnyArray, columns: Sequence[str] | None, source: str, first_row: int
) -> AnyArray:
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(features, np.float32)
    bad = ~np.isfinite(single)
    if bad.any():
        row, column = (int(index) for index in np.argwhere(bad)[0])
        name = repr(columns[column]) if columns else str(column)
        raise DataError(
            f"{source}: {_row(row, first_row)}, column {name} is not a finite 32-bit number (NaN, "
            f"infinite or too large). Repair or remove the row."
        )
    return single


def scaled(features: AnyArray, bounds: tuple[float, float]) -> AnyArray:
    """Features clipped to public bounds and mapped to [-1, 1]; no bound comes from the data."""
    low, high = bounds
    unit = (np.clip(features.astype(np.float64), low, high) - low) / (high - low)
    return np.asarray(2 * unit - 1, np.float32)


def divided(
    records: int, fraction: float, source: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of training and of test records, by a permutation that never sees a record.

    The same number of records and fraction give the same division on every machine.
    """
    count = round(fraction * records)
    if not 0 < count < records:
        raise DataError(
            f"test_fraction={fraction}: leaves no record of {source} for testing or none for "
            f"training. Choose another fraction."
        )
    order = np.random.RandomState(SPLIT_SEED).permutation(records).astype(np.int64)
    return np.sort(order[count:]), np.sort(order[:count])


def class_names_of(table: Table, classes: int | None) -> tuple[str, ...]:
    """Class names in label order: 0..classes-1 where given, else those that the labels show."""
    if classes is not None:
        return tuple(str(label) for label in range(classes))
    labels = table.labels
    if labels.dtype.kind == "U":
        names = tuple(str(name) for name in np.unique(labels))
    else:
        largest = int(labels.max())
        names = tuple(str(label) for label in range(min(largest, MOST_CLASSES) + 1))
    if not 2 <= len(names) <= MOST_CLASSES:
        amount = "fewer than 2" if len(names) < 2 else f"more than {MOST_CLASSES}"
        raise DataError(
            f"{table.source}: the labels make {amount} classes. Name the right column with "
            f"label_column, or give the number of classes with classes."
        )
    return names


def encoded(table: Table, names: tuple[str, ...]) -> NDArray[np.int64]:
    """Labels as positions in the class names; a label outside of them is an error."""
    labels = table.labels
    if labels.dtype.kind == "U":
        positions = {name: position for position, name in enumerate(names)}
        codes = np.array([positions.get(str(label), -1) for label in labels], np.int64)
    else:
        codes = labels.astype(np.int64)
    wrong = np.flatnonzero((codes < 0) | (codes >= len(names)))
    if wrong.size:
        raise DataError(
            f"{table.source}: the label in {_row(int(wrong[0]), table.first_row)} is none of the "
            f"{len(names)} classes; whole numbers must be 0 to {len(names) - 1}. Correct it, or "
            f"give the right number of classes with classes."
        )
    return codes


def plain_labels(values: AnyArray, source: str, first_row: int) -> AnyArray:
    """Labels as int64 or as text; anything else, or a mixture, is an error naming the row."""

    def refuse(index: int, reason: str) -> DataError:
        row = _row(index, first_row)
        return DataError(f"{source}: the label in {row} {reason}. {_LABELS_HELP}")

    if values.ndim != 1:
        raise DataError(
            f"{source}: labels have {values.ndim} dimensions, not 1. {_LABELS_HELP} Flatten them."
        )
    if values.dtype.kind in "biu":
        if values.dtype == np.uint64 and (values > np.iinfo(np.int64).max).any():
            raise refuse(int(np.argmax(values)), "is too large")
        return values.astype(np.int64)
    if values.dtype.kind == "U":
        blank = np.char.strip(values) == ""
        if blank.any():
            raise refuse(int(np.argmax(blank)), "is empty")
        numeric = np.array([is_number(str(value)) for value in values])
        if not numeric.any():
            return values
        if not numeric.all():
            raise refuse(int(np.argmin(numeric)), "is not a number, though others are")
        values = np.array([float(value) for value in values])
    if values.dtype.kind != "f":
        raise DataError(f"{source}: labels of type {values.dtype} cannot be used. {_LABELS_HELP}")
    with np.errstate(invalid="ignore"):
        whole = np.isfinite(values) & (values == np.trunc(values)) & (np.abs(values) < 2**53)
    if not whole.all():
        raise refuse(int(np.argmin(whole)), "is not a whole number")
    return values.astype(np.int64)


def is_number(text: str) -> bool:
    """Whether Python reads the text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
