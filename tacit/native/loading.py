"""Finds the compiled kernels, and says which are in use."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tacit.native import structures
from tacit.native.library import Library

_PATH = Path(__file__).with_name("kernels.so")
_VERSION = 13


@functools.cache
def _loaded() -> tuple[Library, ...]:
    """A library for each instruction set that this processor has; none without the kernels."""
    if not _PATH.exists():
        return ()
    try:
        library = _opened()
        found = library.tacit_version()
        if found != _VERSION:
            raise OSError(f"it is of version {found}, not {_VERSION}")
        for name, types in structures.SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, structures.RESULTS.get(name)
        build = hashlib.sha256(_PATH.read_bytes()).hexdigest()[:16]
    except (OSError, AttributeError) as error:
        warnings.warn(
            f"the compiled kernels of tacit cannot be used ({error}); everything works without"
            " them, more slowly. Install the package again to build them anew",
            stacklevel=2,
        )
        return ()
    return tuple(Library(library, level, build) for level in range(library.tacit_levels()))


def _opened() -> ctypes.CDLL:
    """The library, with the OpenMP runtime that torch has loaded, or else the system's."""
    try:
        return ctypes.CDLL(str(_PATH))
    except OSError:
        ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(_PATH))


def available() -> bool:
    """Whether there are compiled kernels to use."""
    return active() is not None


_limit: int | None = None


def active() -> Library | None:
    """The kernels for the best instruction set of this processor, or None without kernels."""
    if os.environ.get("TACIT_NATIVE") == "0":
        return None
    libraries = _loaded()
    if _limit is not None:
        libraries = libraries[:_limit]
    return libraries[-1] if libraries else None


@contextmanager
def limited_to(levels: int) -> Iterator[None]:
    """Use only the first so many instruction sets for a while; none at all with 0."""
    global _limit
    before, _limit = _limit, levels
    try:
        yield
    finally:
        _limit = before
