"""The options that say how a dataset is read, checked before any data is touched."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from tacit.errors import ArgumentError, DataError

FROM_LABELS = "from-labels"
"""The value of `classes` that takes the classes from the records' own labels."""

TEXT_OPTIONS = ("length", "vocabulary", "hash_buckets", "ngrams", "word_set")
"""The options that text has a use for."""

Bounds = tuple[float, float]
Scale = Bounds | tuple[Bounds, ...] | dict[str, Bounds]
"""Bounds for all columns alike, for each in turn, or by name."""

_MOST_CLASSES = 1 << 16


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


@dataclass(frozen=True)
class DataOptions:
    """How to read a dataset. Setting an option that the dataset has no use for is an error.

    classes: the classes of the user's own records, which always have to be said: a list of class
        names, or a number n for the labels 0..n-1. "from-labels" takes them from the labels
        instead, which shows a label that only one record has; the certificate then says so.
    label_column: column of a .csv or .parquet with the labels; default "label", else the last.
    text_column: column of a .csv or .parquet whose words are the features; others are left out.
    test_fraction: part of the user's own records set aside by position when there is no test set.
    length: words kept per text; shorter texts are padded.
    vocabulary: path of a public word list, one per line; without it words are hashed.
    hash_buckets: number of ids that words are hashed to.
    ngrams: 2 counts pairs of neighbouring words as words of their own, after the single ones.
    word_set: keep each word of a text once, and none of a fixed list of very common English words.
    image_size: side of the square that images in a folder are resized to.
    channels: 1 for greyscale or 3 for colour, that images in a folder are converted to.
    scale: public (low, high) that table features are clipped to before mapping them to [-1, 1]:
        one pair for all columns, a list of one pair for each, or pairs by the column's name.
    """

    classes: int | str | tuple[str, ...] | None = None
    label_column: str | None = None
    text_column: str | None = None
    test_fraction: float = 0.0
    length: int = 256
    vocabulary: str | None = None
    hash_buckets: int = 4096
    ngrams: int = 1
    word_set: bool = False
    image_size: int | None = None
    channels: int | None = None
    scale: Scale | None = None

    def __post_init__(self) -> None:
        for option in ("label_column", "text_column", "vocabulary"):
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
            ("ngrams", 1, 4),
            ("image_size", 1, 1 << 12),
        ):
            value = getattr(self, option)
            optional = option == "image_size"
            if not (_whole(value, low, high) or (value is None and optional)):
                raise DataError(f"{option}={value!r}: must be a whole number from {low} to {high}.")
        if not isinstance(self.word_set, bool):
            raise DataError(f"word_set={self.word_set!r}: must be true or false.")
        if self.channels is not None and not (_whole(self.channels, 1, 3) and self.channels != 2):
            raise DataError(f"channels={self.channels!r}: must be 1 (greyscale) or 3 (colour).")
        if self.classes is not None:
            object.__setattr__(self, "classes", _classes(self.classes))
        if self.scale is not None:
            object.__setattr__(self, "scale", _scale(self.scale))


def _classes(value: object) -> int | str | tuple[str, ...]:
    if isinstance(value, int) and _whole(value, 2, _MOST_CLASSES):
        return value
    if isinstance(value, str) and value == FROM_LABELS:
        return value
    if isinstance(value, (tuple, list)) and 2 <= len(value) <= _MOST_CLASSES:
        names = tuple(name for name in value if isinstance(name, str) and name.strip() == name)
        if len(set(names)) == len(value) and "" not in names:
            return names
    raise DataError(
        f"classes={value!r}: must be a list of at least two different class names, each a text "
        f'without blanks around it, such as ["no", "yes"]; a whole number n from 2 to '
        f"{_MOST_CLASSES} for the labels 0 to n-1; or {FROM_LABELS!r}."
    )


def stated_classes(options: DataOptions, path: object) -> int | str | tuple[str, ...]:
    """The option `classes`; leaving it out is an error, as the labels themselves are private."""
    if options.classes is None:
        raise ArgumentError(
            f"data.options.classes is not given for {path}: the classes decide the model's "
            f"outputs, and taken from the labels they would show a label that only one record "
            f'has. Name them, as in --set \'data.options.classes=["flu", "cold"]\'; or give '
            f"their number, --set data.options.classes=2, where labels are whole numbers from 0; "
            f"or take them from the labels with --set data.options.classes={FROM_LABELS}, where "
            f"the labels are public. In Python these are values of DataOptions(classes=…)."
        )
    return options.classes


def _scale(scale: object) -> Scale:
    if isinstance(scale, dict) and scale:
        return {str(name): _bounds(pair, f" for column {name!r}") for name, pair in scale.items()}
    if isinstance(scale, (tuple, list)) and scale and isinstance(scale[0], (tuple, list)):
        return tuple(_bounds(pair, f" for column {at + 1}") for at, pair in enumerate(scale))
    return _bounds(scale, "")


def _bounds(pair: object, where: str) -> Bounds:
    if isinstance(pair, (tuple, list)) and len(pair) == 2:
        low, high = pair
        numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in pair)
        if numbers and math.isfinite(high - low) and low < high:
            return float(low), float(high)
    raise DataError(
        f"scale={pair!r}{where}: must be two finite numbers (low, high) with low below high, "
        f"a list of such pairs, or such pairs by the names of columns."
    )


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
