"""Downloads of the named datasets from their publishers: verified, then put in place at once."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import IO

from tacit.data.formats import DAMAGE
from tacit.data.places import user_cache
from tacit.data.published import DATASETS, Download
from tacit.errors import DataError

Progress = Callable[[str, int, int], None]
"""Called with the file name, the bytes received and the bytes expected."""

_CHUNK = 1 << 20
_TIMEOUT_SECONDS = 60


def digest(stream: IO[bytes] | gzip.GzipFile, algorithm: str) -> str:
    """The checksum of everything left in a stream, in hexadecimal."""
    # These sums are the publishers'; they find damage, and MD5 is what most publish.
    running = hashlib.new(algorithm, usedforsecurity=False)
    while chunk := stream.read(_CHUNK):
        running.update(chunk)
    return running.hexdigest()


def matches(path: Path, download: Download) -> bool:
    """Whether the file is as published, byte for byte or, where known, once uncompressed."""
    with path.open("rb") as stream:
        if digest(stream, "md5") == download.md5:
            return True
    if download.content_sha256 is None:
        return False
    try:
        with gzip.open(path, "rb") as content:
            return digest(content, "sha256") == download.content_sha256
    except DAMAGE:
        return False


def fetch(name: str, dest: Path | None = None, progress: Progress | None = None) -> Path:
    """Download a named dataset to `dest`, by default the user's cache; returns where it now is.

    A file appears under its final name only when its checksum is the published one. Files already
    there and correct are kept; on failure nothing is left behind.
    """
    if name not in DATASETS:
        raise DataError(
            f"dataset {name!r}: no such dataset can be fetched. Choose from "
            f"{', '.join(entry.name for entry in DATASETS.values() if entry.downloads)}."
        )
    downloads = DATASETS[name].downloads
    if not downloads:
        raise DataError(f"dataset {name!r}: part of scikit-learn, so there is nothing to fetch.")
    base = user_cache() if dest is None else Path(dest).expanduser()
    folder = base / name if len(downloads) > 1 else base
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for download in downloads:
            target = folder / download.file
            if not (target.is_file() and matches(target, download)):
                _fetch_file(download, target, progress)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written ({error.strerror or error}). Choose another folder."
        ) from error
    return folder if len(downloads) > 1 else folder / downloads[0].file


def _fetch_file(download: Download, target: Path, progress: Progress | None) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    failures = []
    try:
        for address in download.addresses:
            try:
                _receive(address, partial, download, progress)
            except (_NotReceivedError, http.client.HTTPException) as error:
                failures.append(f"  {address}: {error}")
                continue
            if matches(partial, download):
                partial.replace(target)
                return
            failures.append(f"  {address}: the file received is not the published one (checksum)")
    finally:
        partial.unlink(missing_ok=True)
    reasons = "\n".join(failures)
    raise DataError(
        f"{download.file}: could not be fetched.\n{reasons}\nFetch it by hand from "
        f"{download.addresses[0]} on a machine with network access and put it at {target}."
    )


class _NotReceivedError(Exception):
    """A download that did not come through."""


def _receive(address: str, partial: Path, download: Download, progress: Progress | None) -> None:
    """Write what the address sends to the partial file, never much more than expected."""
    try:
        response = urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS)
    except OSError as error:
        raise _NotReceivedError(str(error)) from error
    with closing(response), partial.open("wb") as out:
        received = 0
        while True:
            try:
                chunk = response.read(_CHUNK)
            except OSError as error:
                raise _NotReceivedError(str(error)) from error
            if not chunk:
                return
            received += len(chunk)
            if received > 2 * download.size:
                raise _NotReceivedError(f"sent more than twice the {download.size} bytes expected")
            out.write(chunk)
            if progress is not None:
                progress(download.file, received, download.size)
