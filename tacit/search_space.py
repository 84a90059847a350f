"""Which settings a search may try: recipe values, each with a list or a range."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.config import Recipe
from tacit.errors import ArgumentError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Settings = dict[str, Any]

_SECTIONS = ("method", "model", "training")
_DIGITS = 3


@dataclass(frozen=True)
class Choice:
    """One recipe value, and what it may be."""

    key: str
    values: tuple[Any, ...]

    def drawn(self, generator: np.random.Generator) -> Any:
        """Every value is as likely as the others."""
        return self.values[int(generator.integers(len(self.values)))]

    def as_json(self) -> list[Any]:
        """Plain values."""
        return list(self.values)


@dataclass(frozen=True)
class Range:
    """One recipe value between two bounds, by its logarithm where both are positive."""

    key: str
    low: float
    high: float
    whole: bool

    @property
    def by_logarithm(self) -> bool:
        """Whether equal factors, not equal distances, are equally likely."""
        return self.low > 0

    def drawn(self, generator: np.random.Generator) -> float | int:
        """A value within the bounds, to three digits."""
        at = float(generator.random())
        value = self.low + (self.high - self.low) * at
        if self.by_logarithm:
            value = self.low * math.exp(at * math.log(self.high / self.low))
        return self.rounded(value)

    def rounded(self, value: float) -> float | int:
        """A whole number where the bounds are, three digits otherwise, never out of bounds."""
        if self.whole:
            return round(value)
        return min(self.high, max(self.low, float(f"{value:.{_DIGITS}g}")))

    def as_json(self) -> dict[str, float]:
        """Plain values."""
        return {"low": self.low, "high": self.high}


@dataclass(frozen=True)
class Space:
    """All settings that a search may try."""

    parts: tuple[Choice | Range, ...]

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> Space:
        """From `key=a,b,c` and `key=low..high`.

        >>> space = Space.parse({"method.clip": "0.1..1", "training.batch_size": "64,128"})
        >>> [type(part).__name__ for part in space.parts]
        ['Range', 'Choice']
        """
        if not texts:
            raise ArgumentError(
                "nothing to search over: say what may change, such as --try method.clip=0.1..1"
                ' (in Python: {"method.clip": "0.1..1"})'
            )
        return cls(tuple(_part(key, text) for key, text in texts.items()))

    def check(self, recipe: Recipe) -> None:
        """Refuse values that the recipe cannot take, before anything is trained."""
        for part in self.parts:
            ends = part.values if isinstance(part, Choice) else (part.low, part.high)
            for value in ends:
                whole = isinstance(part, Range) and part.whole
                changed(recipe, {part.key: int(value) if whole else value})

    def candidates(self, most: int) -> list[Settings]:
        """All combinations where there are at most `most`, or else so many of them.

        They are drawn by numbers that follow from the space itself, so that nobody can draw again.
        """
        lists = [part.values for part in self.parts if isinstance(part, Choice)]
        if len(lists) == len(self.parts) and math.prod(map(len, lists)) <= most:
            keys = [part.key for part in self.parts]
            return [dict(zip(keys, values, strict=True)) for values in itertools.product(*lists)]
        digest = hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).digest()
        generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
        drawn = ({part.key: part.drawn(generator) for part in self.parts} for _ in range(most))
        return _distinct(drawn)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {part.key: part.as_json() for part in self.parts}


def changed(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """The recipe with these values, named by their dotted keys."""
    values = recipe.model_dump(mode="json")
    for key, value in settings.items():
        section, _, name = key.partition(".")
        values[section][name] = value
    return Recipe.parse(values)


def _part(key: str, text: str) -> Choice | Range:
    section, _, name = key.partition(".")
    if section == "privacy":
        raise ArgumentError(
            f"{key} is to be tried: under one budget the noise follows from the other settings;"
            " search training.epochs or training.batch_size, which trade noise for steps"
        )
    if section not in _SECTIONS or not name or "." in name or key == "method.name":
        raise ArgumentError(
            f"{key} is to be tried: values of {', '.join(_SECTIONS)} can be searched, such as"
            " method.clip"
        )
    low, dots, high = text.partition("..")
    if dots:
        return _range(key, low.strip(), high.strip())
    inner = text.strip()
    inner = inner if inner.startswith("[") else f"[{inner}]"
    try:
        values = tomllib.loads(f"values = {inner}")["values"]
    except tomllib.TOMLDecodeError:
        values = [word.strip() for word in inner[1:-1].split(",")]
    if not values:
        raise ArgumentError(f"{key} is to be tried: there is no value to try")
    return Choice(key, tuple(values))


def _range(key: str, low: str, high: str) -> Range:
    whole = low.lstrip("-").isdigit() and high.lstrip("-").isdigit()
    try:
        bounds = float(low), float(high)
    except ValueError:
        raise ArgumentError(
            f"{key}={low}..{high} is to be tried: its bounds must be numbers, such as 0.1..2"
        ) from None
    if not (math.isfinite(bounds[0]) and math.isfinite(bounds[1]) and bounds[0] < bounds[1]):
        raise ArgumentError(
            f"{key}={low}..{high} is to be tried: the second bound must be above the first"
        )
    return Range(key, *bounds, whole and key != "training.epochs")


def _distinct(settings: Iterable[Settings]) -> list[Settings]:
    found: list[Settings] = []
    for each in settings:
        if each not in found:
            found.append(each)
    return found
