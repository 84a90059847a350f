"""Records of a user's own, checked: at least one, and finite features.

Messages name the source, the row and the column, never the value found there: it may be private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.data.options import Bounds, Scale
from tacit.errors import DataError

SPLIT_SEED = 20_170_814
"""Seed of the division into training and test records; public, so it hides nothing."""

AnyArray = NDArray[Any]


@dataclass(frozen=True)
class Table:
    """Features [n, columns], images (uint8, four dimensions) or texts [n]; labels as they came.

    `columns` names the features where the file does.
    """

    features: AnyArray
    labels: AnyArray
    source: str
    first_row: int
    columns: tuple[str, ...] = ()


def row_name(index: int, first_row: int) -> str:
    """A record's place as the user counts it."""
    return f"row {index + first_row} (counting from {first_row})"


def checked_table(
    features: AnyArray, labels: AnyArray, source: str, first_row: int, columns: Sequence[str] | None
) -> Table:
    """A table with at least one record; features are finite numbers, or texts if objects."""
    if not len(features):
        raise DataError(f"{source}: holds no records. Give a file with at least one.")
    if features.dtype != object:
        features = _finite(features, columns, source, first_row)
    return Table(features, labels, source, first_row, tuple(columns or ()))


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
            f"{source}: {row_name(row, first_row)}, column {name} is not a finite 32-bit number "
            f"(NaN, infinite or too large). Repair or remove the row."
        )
    return single


def scaled(table: Table, scale: Scale) -> AnyArray:
    """Features clipped to public bounds and mapped to [-1, 1]; no bound comes from the data."""
    low, high = np.array(_column_bounds(table, scale), np.float64).T
    unit = (np.clip(table.features.astype(np.float64), low, high) - low) / (high - low)
    return np.asarray(2 * unit - 1, np.float32)


def _column_bounds(table: Table, scale: Scale) -> list[Bounds]:
    """One pair for each column; a column without one, or a pair without a column, is an error."""
    count = table.features.shape[1]
    names = table.columns or tuple(str(at) for at in range(count))
    if isinstance(scale, dict):
        unknown = [name for name in scale if name not in names]
        absent = [name for name in names if name not in scale]
        if unknown:
            raise DataError(
                f"scale: {table.source} has no feature column {_some(unknown)}. Its feature"
                f" columns: {_some(names)}."
            )
        if absent:
            raise DataError(
                f"scale: no bounds for {_some(absent)} of {table.source}. Give every feature"
                f" column a pair."
            )
        return [scale[name] for name in names]
    pairs = [pair for pair in scale if isinstance(pair, tuple)]
    if not pairs:
        low, high = (float(bound) for bound in scale if not isinstance(bound, tuple))
        return [(low, high)] * count
    if len(pairs) != count:
        raise DataError(
            f"scale: {len(pairs)} pairs, but {table.source} has {count} feature columns"
            f" ({_some(names)}). Give one pair for each, in this order."
        )
    return pairs


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")


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


def is_number(text: str) -> bool:
    """Whether Python reads the text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
