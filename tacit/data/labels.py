"""Labels of a user's own records: which classes there are, and which one each record has.

Messages name the source and the row, never the label found there: it may be private.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.data.options import FROM_LABELS
from tacit.data.records import AnyArray, Table, is_number, row_name
from tacit.errors import DataError

MOST_DERIVED_CLASSES = 1000
_HELP = "Labels are whole numbers from 0, or class names."
_DERIVED = (
    "the set of labels, taken from the records themselves because classes = "
    f'"{FROM_LABELS}"; a label that only one record has would show'
)


def class_names(table: Table, classes: int | str | tuple[str, ...]) -> tuple[str, ...]:
    """Class names in label order; the labels are looked at only for "from-labels"."""
    if isinstance(classes, tuple):
        return classes
    if isinstance(classes, int):
        return numbered(classes)
    labels = _plain(table)
    if labels.dtype.kind == "U":
        names = tuple(str(name) for name in np.unique(labels))
    else:
        names = numbered(min(int(labels.max()), MOST_DERIVED_CLASSES) + 1)
    if not 2 <= len(names) <= MOST_DERIVED_CLASSES:
        amount = "fewer than 2" if len(names) < 2 else f"more than {MOST_DERIVED_CLASSES}"
        raise DataError(
            f"{table.source}: the labels make {amount} classes. Name the right column with "
            f"label_column, or give the classes with classes."
        )
    return names


def numbered(classes: int) -> tuple[str, ...]:
    """The names of classes that are whole numbers from 0."""
    return tuple(str(label) for label in range(classes))


def public_sentence(classes: int | str | tuple[str, ...]) -> str:
    """What the certificate says about where the classes came from."""
    if isinstance(classes, str):
        return _DERIVED
    if isinstance(classes, int):
        return f"the number of classes, {classes} (a given option)"
    return f"the names of the {len(classes)} classes (a given option)"


def encoded(
    table: Table, classes: int | str | tuple[str, ...], names: tuple[str, ...]
) -> NDArray[np.int64]:
    """Labels as positions in the class names; a label outside of them is an error."""
    by_name = isinstance(classes, tuple)
    labels = _text(table) if by_name else _plain(table)
    if labels.dtype.kind == "U":
        positions = {name: position for position, name in enumerate(names)}
        codes = np.array([positions.get(str(label), -1) for label in labels], np.int64)
    else:
        codes = labels.astype(np.int64)
    wrong = np.flatnonzero((codes < 0) | (codes >= len(names)))
    if wrong.size:
        known = (
            f"none of the {len(names)} class names given. Correct it, or add its name to classes."
            if by_name
            else f"none of the {len(names)} classes; whole numbers must be 0 to {len(names) - 1}. "
            f"Correct it, or give the right number, or a list of class names, with classes."
        )
        row = row_name(int(wrong[0]), table.first_row)
        raise DataError(f"{table.source}: the label in {row} is {known}")
    return codes


def _text(table: Table) -> AnyArray:
    """Labels as written, without blanks around them; whole numbers as their digits."""
    if table.labels.dtype.kind == "U" and table.labels.ndim == 1:
        return np.char.strip(table.labels)
    return _plain(table).astype("U")


def _plain(table: Table) -> AnyArray:
    """Labels as int64 or as text; anything else, or a mixture, is an error naming the row."""
    values, source = table.labels, table.source

    def refuse(index: int, reason: str) -> DataError:
        row = row_name(index, table.first_row)
        return DataError(f"{source}: the label in {row} {reason}. {_HELP}")

    if values.ndim != 1:
        raise DataError(
            f"{source}: labels have {values.ndim} dimensions, not 1. {_HELP} Flatten them."
        )
    if values.dtype.kind in "biu":
        if values.dtype == np.uint64 and (values > np.iinfo(np.int64).max).any():
            raise refuse(int(np.argmax(values)), "is too large")
        return values.astype(np.int64)
    if values.dtype.kind == "U":
        values = np.char.strip(values)
        if (values == "").any():
            raise refuse(int(np.argmax(values == "")), "is empty")
        numeric = np.array([is_number(str(value)) for value in values])
        if not numeric.any():
            return values
        if not numeric.all():
            raise refuse(int(np.argmin(numeric)), "is not a number, though others are")
        values = np.array([float(value) for value in values])
    if values.dtype.kind != "f":
        raise DataError(f"{source}: labels of type {values.dtype} cannot be used. {_HELP}")
    with np.errstate(invalid="ignore"):
        whole = np.isfinite(values) & (values == np.trunc(values)) & (np.abs(values) < 2**53)
    if not whole.all():
        raise refuse(int(np.argmin(whole)), "is not a whole number")
    return values.astype(np.int64)
