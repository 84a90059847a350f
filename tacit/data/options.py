"""The options that say how a dataset is read, checked before any data is touched."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from tacit.errors import DataError


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


@dataclass(frozen=True)
class DataOptions:
    """How to read a dataset. Setting an option that the dataset has no use for is an error.

    label_column: column of a .csv or .parquet with the labels; default "label", else the last.
    test_fraction: part of the user's own records set aside by position when there is no test set.
    length: words kept per text; shorter texts are padded.
    vocabulary: path of a public word list, one per line; without it words are hashed.
    hash_buckets: number of ids that words are hashed to.
    image_size: side of the square that images in a folder are resized to.
    classes: number of classes of a table, whose labels must then be 0..classes-1.
    scale: public (low, high) that table features are clipped to before mapping them to [-1, 1].
    """

    label_column: str | None = None
    test_fraction: float = 0.0
    length: int = 256
    vocabulary: str | None = None
    hash_buckets: int = 4096
    image_size: int | None = None
    classes: int | None = None
    scale: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for option in ("label_column", "vocabulary"):
            value = getattr(self, option)
            if value is not None and (not isinstance(value, str) or not value):
                raise DataError(f"{option}={value!r}: must be a text that is not empty, or None.")
        fraction = self.test_fraction
        if isinstance(fraction, bool) or not isinstance(fraction, (int, float)):
            raise DataError(f"test_fraction={fraction!r}: must be a number from 0 to below 1.")
        if not 0 <= fraction < 1:
            raise DataError(f"test_fraction={fraction!r}: must be at least 0 and below 1.")
        for option, low, high in (
            ("length", 1, 1 << 16),
            ("hash_buckets", 1, 1 << 24),
            ("image_size", 1, 1 << 12),
            ("classes", 2, 1 << 16),
        ):
            value = getattr(self, option)
            optional = option in ("image_size", "classes")
            if not (_whole(value, low, high) or (value is None and optional)):
                raise DataError(f"{option}={value!r}: must be a whole number from {low} to {high}.")
        if self.scale is not None:
            object.__setattr__(self, "scale", _bounds(self.scale))


def _bounds(scale: object) -> tuple[float, float]:
    if isinstance(scale, (tuple, list)) and len(scale) == 2:
        low, high = scale
        numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in scale)
        if numbers and math.isfinite(high - low) and low < high:
            return float(low), float(high)
    raise DataError(f"scale={scale!r}: must be two finite numbers (low, high) with low below high.")


DEFAULTS = DataOptions()


def refuse_unused(options: DataOptions, used: tuple[str, ...], name: str) -> None:
    """Raise for an option that was set but would be ignored."""
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name not in used and value != field.default:
            raise DataError(
                f"{field.name}={value!r}: has no effect on {name!r}. Leave it out; options used "
                f"here: {', '.join(used) or 'none'}."
            )
