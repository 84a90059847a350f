"""Text to token ids, by a fixed hash or a public vocabulary, and the IMDb reviews as published.

The mapping from words to ids never depends on the records. A vocabulary built from private text
would reveal which words occur in it, so none is ever built here: words are hashed, or looked up in
a list the user names and vouches for as public. Which words the records use is never reported.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tacit.data.formats import DAMAGE, damaged
from tacit.data.options import DataOptions
from tacit.errors import DataError

PADDING = 0
UNKNOWN = 1
SIDES = ("neg", "pos")

_COMMON_WORDS = """
a an the and or if then than that this these those there here it its it's he she they we you i
him her his hers them their theirs us our ours your yours my mine me who whom whose which what
when where while how as at by for from in into of off on onto out over to under up with within
is am are was were be been being do does did has have had having will would shall should can
could may might must about after again also any because before between both during each few
further just more most other own same so some such through until very
"""
COMMON = frozenset(_COMMON_WORDS.split())
"""Words that say little of a text's class; fixed here, whatever the records are."""

_TAG = re.compile(r"</?[a-z!][^<>]*>")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_REVIEW = re.compile(r"(?:.*/)?aclImdb/(train|test)/(neg|pos)/(\d+)_(\d+)\.txt")
_REVIEW_FILE = re.compile(r"(\d+)_(\d+)\.txt")
_LARGEST_REVIEW = 1 << 20


def words(text: str) -> list[str]:
    """The words of a text in lower case, without HTML tags, punctuation or underscores."""
    plain = _TAG.sub(" ", text.lower().replace("\u2019", "'"))
    return _WORD.findall(plain)


def hashed_id(word: str, buckets: int) -> int:
    """A number from 1 to `buckets` that is the same for a word on every machine."""
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "big") % buckets


class _HashedIds(dict[str, int]):
    """Remembers ids already computed; holds nothing that the words alone do not determine."""

    def __init__(self, buckets: int) -> None:
        super().__init__()
        self._buckets = buckets

    def __missing__(self, word: str) -> int:
        self[word] = number = hashed_id(word, self._buckets)
        return number


class _KnownIds(dict[str, int]):
    def __missing__(self, word: str) -> int:
        return UNKNOWN


@dataclass(frozen=True)
class Encoder:
    """Turns texts into rows of `length` ids below `size`; 0 pads short texts on the right."""

    ids: dict[str, int]
    size: int
    length: int
    ngrams: int = 1
    word_set: bool = False

    @classmethod
    def by_hash(cls, buckets: int, length: int, ngrams: int = 1, word_set: bool = False) -> Encoder:
        """Ids 1..buckets by hashing; nothing has to be known about the words in advance."""
        return cls(_HashedIds(buckets), buckets + 1, length, ngrams, word_set)

    @classmethod
    def by_vocabulary(
        cls, path: Path, length: int, ngrams: int = 1, word_set: bool = False
    ) -> Encoder:
        """Ids 2 and up in the order of a public word list, 1 for words not on it.

        The list must not have been made from the private records; nothing here can check that.
        """
        known = _KnownIds()
        for word in _vocabulary_lines(path):
            known.setdefault(word, len(known) + 2)
        return cls(known, len(known) + 2, length, ngrams, word_set)

    def encode(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """One row of ids per text; those after the first `length` are dropped."""
        rows = np.full((len(texts), self.length), PADDING, np.int64)
        for row, text in zip(rows, texts, strict=True):
            kept = self._numbers(words(text))[: self.length]
            row[: len(kept)] = kept
        return rows

    def _numbers(self, found: list[str]) -> list[int]:
        if self.word_set:
            found = [word for word in found if word not in COMMON]
        numbers = [self.ids[word] for word in found]
        for size in range(2, self.ngrams + 1):
            places = range(len(found) - size + 1)
            numbers += [self.ids[" ".join(found[place : place + size])] for place in places]
        return list(dict.fromkeys(numbers)) if self.word_set else numbers


def encoder_for(options: DataOptions) -> tuple[Encoder, tuple[str, ...]]:
    """The encoder that the options ask for, and what the certificate has to say of it."""
    shape = (options.length, options.ngrams, options.word_set)
    if options.vocabulary is None:
        encoder = Encoder.by_hash(options.hash_buckets, *shape)
        ids = f"the hashing of words to {options.hash_buckets} ids (a fixed function)"
    else:
        encoder = Encoder.by_vocabulary(Path(options.vocabulary).expanduser(), *shape)
        ids = (
            f"the vocabulary of {encoder.size - 2} words in {options.vocabulary} (given as public; "
            f"it must not be made from the records)"
        )
    return encoder, (ids, f"the limit of {options.length} words per record (a fixed option)")


def _vocabulary_lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(
            f"vocabulary {path}: not UTF-8 text. Give a text file with one word per line."
        ) from error
    except OSError as error:
        raise DataError(
            f"vocabulary {path}: cannot be read ({error.strerror}). Give a text file with one "
            f"word per line, or leave the option out to hash words instead."
        ) from error
    found = [line.strip().lower() for line in lines if line.strip()]
    if not found:
        raise DataError(f"vocabulary {path}: holds no words. Give one word per line.")
    return found


@dataclass(frozen=True)
class Review:
    """One published review; the side is its folder, the rating is part of its file name."""

    split: str
    side: str
    number: int
    rating: int
    text: str


def imdb_reviews(path: Path) -> Iterator[Review]:
    """Every labelled review in an aclImdb folder or its archive; nothing is extracted to disk."""
    try:
        yield from _folder_reviews(path) if path.is_dir() else _archive_reviews(path)
    except DAMAGE as error:
        raise damaged(path, error) from error


def _folder_reviews(folder: Path) -> Iterator[Review]:
    for split in ("train", "test"):
        for side in SIDES:
            place = folder / split / side
            if not place.is_dir():
                raise DataError(
                    f"{place}: missing, though the dataset has reviews in {split}/{side}. Fetch it "
                    f"again with `tacit data fetch imdb`."
                )
            for file in place.iterdir():
                named = _REVIEW_FILE.fullmatch(file.name)
                if named:
                    with file.open("rb") as stream:
                        text = _decoded(stream.read(_LARGEST_REVIEW + 1), file)
                    yield Review(split, side, int(named[1]), int(named[2]), text)


def _archive_reviews(path: Path) -> Iterator[Review]:
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            named = _REVIEW.fullmatch(member.name)
            stream = archive.extractfile(member) if named and member.isfile() else None
            if named and stream is not None:
                text = _decoded(stream.read(_LARGEST_REVIEW + 1), path / member.name)
                yield Review(named[1], named[2], int(named[3]), int(named[4]), text)


def _decoded(content: bytes, path: Path) -> str:
    if len(content) > _LARGEST_REVIEW:
        raise DataError(
            f"{path}: longer than {_LARGEST_REVIEW} bytes, so not one of the published reviews. "
            f"Fetch the dataset again with `tacit data fetch imdb`."
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 text. The file is damaged; fetch the dataset again with "
            f"`tacit data fetch imdb`."
        ) from error


def in_order(reviews: Sequence[Review], path: Path) -> tuple[list[str], NDArray[np.int64]]:
    """Texts and labels, negative before positive and each by number, whatever order they came."""
    if not reviews:
        raise DataError(
            f"{path}: no reviews found in one of its splits. Fetch the dataset again with "
            f"`tacit data fetch imdb`."
        )
    ordered = sorted(reviews, key=lambda review: (SIDES.index(review.side), review.number))
    labels = np.array([SIDES.index(review.side) for review in ordered], np.int64)
    return [review.text for review in ordered], labels
