"""Vectors that were released before, recognised by the ledger that lies beside them.

What is trained on them is post-processing: it costs what the release cost, once, and nothing more.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from dp_accounting import DpEvent

from tacit.errors import DataError
from tacit.privacy import certificate, ledger
from tacit.privacy.relations import Relation


@dataclass(frozen=True)
class Release:
    """What releasing the records cost, under which relation, and the ledger that says so."""

    event: DpEvent
    relation: Relation
    ledger_head: str
    public: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What its certificate treats as public, and warns of: both hold for whoever trains on it."""


def release_of(path: Path, contents: bytes | None = None) -> Release | None:
    """The release that this file is, if a whole ledger beside it names the file.

    Guarantee: `contents`, the file's bytes where they were read already, are those that the ledger
    was charged for. A file that was changed since is refused, because training on it would be taken
    for training on the release.
    """
    beside = path.parent / "ledger.jsonl"
    if not beside.is_file():
        return None
    entries = ledger.read(beside)
    named = {e.body["file"]: e.body["sha256"] for e in entries if e.kind == "export"}
    if path.name not in named:
        return None
    contents = path.read_bytes() if contents is None else contents
    if named[path.name] != hashlib.sha256(contents).hexdigest():
        raise DataError(
            f"{path}: its ledger names other contents; it was changed or damaged since it was"
            " released. Restore it, or move it away from the ledger to train on it without a"
            " guarantee"
        )
    if [e.kind for e in entries if e.kind != "audit"][-1] != "release":
        raise DataError(f"{path}: its release was not finished. Run tacit sanitize again elsewhere")
    promise = entries[0].body
    return Release(
        certificate.covered(entries),
        Relation(promise["relation"]),
        next(e.hash for e in reversed(entries) if e.kind == "release"),
        tuple(promise["treated_as_public"]),
        tuple(promise["warnings"]),
    )
