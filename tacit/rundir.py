"""A run on disk: what may be published, and a private part that is erased when the run ends.

    RUN/recipe.toml  ledger.jsonl  metrics.json  weights.safetensors
    RUN/report.html  certificate.json  certificate.txt (these two not without privacy)
    RUN/sanitized.npz  where a dataset of noised vectors was released
    RUN/private/     the key of the random source, the log of noised sums, checkpoints; never
                     publish it

Every file is written beside its place and moved there, so a reader never sees half of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from tacit.errors import RESUME, RunError
from tacit.noise.source import RandomSource
from tacit.state import Snapshot

_CHECKPOINT = re.compile(r"step-(\d{9})-([0-9a-f]{32})\.safetensors")
_KEPT_CHECKPOINTS = 2
Json = dict[str, Any]


class RunDir:
    """Paths and atomic writes of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = path / "ledger.jsonl"
        self.recipe = path / "recipe.toml"
        self.metrics = path / "metrics.json"
        self.weights = path / "weights.safetensors"
        self.certificate = path / "certificate.json"
        self.certificate_text = path / "certificate.txt"
        self.export = path / "sanitized.npz"
        self.private = path / "private"

    @classmethod
    def create(cls, path: Path) -> RunDir:
        """A new run directory; an existing run is never overwritten."""
        run = cls(path)
        if run.ledger.exists():
            raise RunError(
                f"{path} already holds a run; continue it with {RESUME}, or choose another"
                " directory"
            )
        with _writing(path):
            run.private.mkdir(parents=True, exist_ok=True)
            os.chmod(run.private, 0o700)
        run._lock()
        return run

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """An existing run directory."""
        run = cls(path)
        if not run.ledger.is_file():
            raise RunError(
                f"{path} is not a run directory: it has no ledger.jsonl; a run that was stopped"
                f" before its first step is started again without {RESUME}"
            )
        return run

    @classmethod
    def continued(cls, path: Path) -> RunDir:
        """An existing run directory that this process alone may write to."""
        run = cls.open(path)
        if run.private.is_dir():
            run._lock()
        return run

    def _lock(self) -> None:
        """Hold the directory until this object goes: two writers would spend one budget twice."""
        self._held = open(self.private / "lock", "wb")  # noqa: SIM115 - held beyond this call
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"{self.path} is in use by another process; wait for it, or choose another"
                " directory"
            ) from None

    def give_up_unstarted(self) -> None:
        """Leave nothing behind of a run that was refused before its ledger was begun."""
        if not self.ledger.exists():
            self._held.close()
            shutil.rmtree(self.private, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.path.rmdir()

    @property
    def finished(self) -> bool:
        """Whether the run has released its weights and erased its private part."""
        return self.weights.exists() and not self.private.exists()

    def write_json(self, path: Path, values: object) -> None:
        """Plain values, readable by people."""
        self.write(path, (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode())

    def write(self, path: Path, data: bytes, *, mode: int = 0o644) -> None:
        """All of the file, or none of it."""
        temporary = path.with_name(path.name + ".part")
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync_folder(path.parent)

    def save_key(self, source: RandomSource, generation: int, bits: Json | None = None) -> None:
        """Keep the key of the random source while the run can be resumed.

        `bits` is what its steps depend on beside the recipe, None if that is not known. One file
        holds all of it, so that a crash never leaves a key beside what belongs to another.
        """
        values = {"generation": generation, "key": source.key.hex(), "origin": source.origin}
        text = json.dumps({**values, "bits": bits})
        self.write(self.private / "key.json", text.encode(), mode=0o600)

    def load_key(self) -> tuple[RandomSource, int, Json | None]:
        """The key of an unfinished run, its generation, and what its steps depend on."""
        path = self.private / "key.json"
        try:
            values = json.loads(path.read_bytes())
            source = RandomSource(bytes.fromhex(values["key"]), values["origin"])
            return source, int(values["generation"]), values.get("bits")
        except (OSError, ValueError, KeyError) as error:
            raise RunError(f"{path}: cannot read the key, so the run cannot go on") from error

    def sum_log(self, generation: int) -> Path:
        """Where the sums that are noised under the key of this generation are noted."""
        return self.private / f"sums-{generation}"

    def save_checkpoint(self, snapshot: Snapshot) -> None:
        """Keep this state; its name holds its hash, so damage is always found."""
        data = snapshot.as_bytes()
        name = f"step-{snapshot.values['step']:09d}-{_hash(data)[:32]}.safetensors"
        self.write(self.private / name, data, mode=0o600)
        for _, path in sorted(self._checkpoints())[:-_KEPT_CHECKPOINTS]:
            _overwrite(path)
            path.unlink(missing_ok=True)

    def load_checkpoint(self) -> Snapshot | None:
        """The newest whole checkpoint; a damaged one is passed over for the one before it."""
        damaged = []
        for _, path in sorted(self._checkpoints(), reverse=True):
            match = _CHECKPOINT.fullmatch(path.name)
            if match and _hash(path.read_bytes())[:32] == match[2]:
                return Snapshot.read(path)
            damaged.append(path.name)
        if damaged:
            raise RunError(
                f"{self.private}: every checkpoint is damaged ({', '.join(damaged)}); the run"
                " cannot go on. What it spent stays in its ledger"
            )
        return None

    def save_weights(self, weights: dict[str, Tensor]) -> str:
        """Store the released weights; returns their SHA-256."""
        data = save(weights)
        self.write(self.weights, data)
        return _hash(data)

    def save_export(self, data: bytes) -> str:
        """Store released vectors; returns their SHA-256."""
        self.write(self.export, data)
        return _hash(data)

    def export_hash(self) -> str:
        """SHA-256 of the stored vectors."""
        return _hash(self.export.read_bytes())

    def save_certificate(self, values: dict[str, Any], text: str) -> None:
        """Store the certificate for programs and for people."""
        self.write_json(self.certificate, values)
        self.write(self.certificate_text, text.encode())

    def withhold_certificate(self) -> None:
        """A run without privacy has no certificate; one that lies there is removed."""
        for path in (self.certificate, self.certificate_text):
            with _writing(path):
                path.unlink(missing_ok=True)

    def weights_hash(self) -> str:
        """SHA-256 of the stored weights."""
        return _hash(self.weights.read_bytes())

    def erase_private(self) -> None:
        """Overwrite the key and the checkpoints, which may hold noise, then remove them all."""
        if not self.private.exists():
            return
        key = self.private / "key.json"
        kept = [path for path in self.private.rglob("*") if path.is_file()]
        for secret in sorted(kept, key=lambda path: path != key):
            _overwrite(secret)
        with _writing(self.private):
            shutil.rmtree(self.private)

    def read_json(self, path: Path) -> Any:
        """Plain values of a file of this run."""
        try:
            values = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: cannot be read ({error})") from error
        return values

    def _checkpoints(self) -> Iterator[tuple[int, Path]]:
        if self.private.is_dir():
            for path in self.private.iterdir():
                match = _CHECKPOINT.fullmatch(path.name)
                if match:
                    yield int(match[1]), path


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _overwrite(path: Path) -> None:
    with _writing(path), open(path, "r+b", buffering=0) as file:
        file.write(bytes(path.stat().st_size))
        os.fsync(file.fileno())


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path}: cannot write ({error.strerror}). Nothing unpaid was applied; mend the"
            f" cause (a full disk?) and continue with {RESUME}"
        ) from error
