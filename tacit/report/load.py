"""A run directory read into memory, checked for shape but not for what it claims.

A run without privacy has no certificate; what is known of it comes from its ledger.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit.errors import RunError
from tacit.privacy import ledger
from tacit.privacy.certificate import issue
from tacit.report.values import clean, finite, number

_AGAIN = "repeat the run with: tacit train recipe.toml --out NEW-RUN"


@dataclass(frozen=True)
class Guarantee:
    """The (ε, δ) that a proof covers; a vacuous one is never built."""

    epsilon: float
    delta: float | None
    relation: str | None
    unit: str


@dataclass(frozen=True)
class Evaluation:
    """The model measured once during training."""

    step: float | None
    epoch: float | None
    seconds: float | None
    epsilon: float | None
    loss: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Confusion:
    """Counts by true class (row) and predicted class (column), with a name for each class."""

    counts: list[list[float]]
    names: list[str]


@dataclass(frozen=True)
class Run:
    """Everything the page shows about one run."""

    title: str
    certificate: Mapping[str, Any]
    certificate_text: str | None
    metrics: Mapping[str, Any]
    recipe: str
    guarantee: Guarantee | None
    evaluations: list[Evaluation]
    epsilon_curve: list[tuple[float, float]]
    confusion: Confusion | None
    trade_off: list[tuple[float, float]] = field(default_factory=list)
    """False alarms, and the misses below which no attack is proven to get."""
    attacked: list[tuple[float, float]] = field(default_factory=list)
    """False alarms and misses of the attack that an audit found strongest."""

    audit: Mapping[str, Any] | None = None

    @property
    def same_delta(self) -> bool:
        """Whether ε in the metrics is for the δ of the guarantee and so compares with it."""
        other = finite(self.metrics.get("delta"))
        own = self.guarantee.delta if self.guarantee is not None else None
        return other is None or own is None or other == own


def load_run(path: Path) -> Run:
    """Read the files of a run directory."""
    if not path.is_dir():
        raise RunError(
            f"run {str(path)!r} is not a directory; "
            "give the directory that `tacit train --out` wrote"
        )
    unprotected = _unprotected(path)
    certificate = unprotected or _json(path / "certificate.json")
    metrics = _json(path / "metrics.json")
    audit = _json(path / "audit.json") if (path / "audit.json").is_file() else None
    title = certificate.get("title")
    if not isinstance(title, str) or not title.strip():
        raise _malformed(path / "certificate.json", "'title' must be a text that is not empty")
    for key in ("guarantee", "proven", "claimed", "audited", "versions"):
        _object(certificate, key, path / "certificate.json")
    return Run(
        title=title,
        certificate=certificate,
        certificate_text=None if unprotected else _text(path / "certificate.txt"),
        metrics=metrics,
        recipe=_text(path / "recipe.toml"),
        guarantee=_guarantee(certificate.get("guarantee")),
        evaluations=_evaluations(metrics, path / "metrics.json"),
        epsilon_curve=_curve(metrics, path / "metrics.json"),
        confusion=_confusion(metrics, path / "metrics.json"),
        trade_off=_pairs(certificate, "trade_off", path / "certificate.json"),
        attacked=_attacked(audit, path / "audit.json"),
        audit=audit,
    )


def _unprotected(path: Path) -> dict[str, Any] | None:
    """What the ledger says of a run without privacy; None for a run that has a certificate."""
    written = path / "ledger.jsonl"
    if (path / "certificate.json").exists() or not written.is_file():
        return None
    issued = issue(ledger.read(written))
    return issued if issued["guarantee"] is None else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"cannot read {str(path)!r} ({reason}); "
            f"restore the file or its permissions, or {_AGAIN}"
        ) from error
    except UnicodeDecodeError as error:
        raise _malformed(path, f"not UTF-8 text at byte {error.start}") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise _malformed(path, f"not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise _malformed(path, "the file must hold one JSON object")
    return found


def _malformed(path: Path, reason: str) -> RunError:
    return RunError(f"cannot use {str(path)!r} ({reason}); restore the file, or {_AGAIN}")


def _object(data: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    found = data.get(key)
    if found is not None and not isinstance(found, dict):
        raise _malformed(path, f"{key!r} must be an object or null")
    return found or {}


def _array(data: Mapping[str, Any], key: str, path: Path) -> list[Any]:
    found = data.get(key)
    if found is not None and not isinstance(found, list):
        raise _malformed(path, f"{key!r} must be a list or null")
    return found or []


def _guarantee(data: Mapping[str, Any] | None) -> Guarantee | None:
    """The guarantee, or None where ε and δ promise nothing."""
    if data is None:
        return None
    epsilon, delta = finite(data.get("epsilon")), number(data.get("delta"))
    if epsilon is None or epsilon < 0 or (delta is not None and not 0 <= delta < 1):
        return None
    relation, unit = data.get("relation"), data.get("unit")
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        relation=relation if isinstance(relation, str) else None,
        unit=unit if isinstance(unit, str) else "one training record",
    )


def _evaluations(metrics: Mapping[str, Any], path: Path) -> list[Evaluation]:
    rows = _array(metrics, "evaluations", path)
    if not all(isinstance(row, dict) for row in rows):
        raise _malformed(path, "'evaluations' must be a list of objects")
    fields = Evaluation.__dataclass_fields__
    return [Evaluation(**{name: number(row.get(name)) for name in fields}) for row in rows]


def _curve(metrics: Mapping[str, Any], path: Path) -> list[tuple[float, float]]:
    points = []
    for pair in _array(metrics, "epsilon_curve", path):
        if not isinstance(pair, list) or len(pair) != 2:
            raise _malformed(path, "'epsilon_curve' must be a list of [step, epsilon] pairs")
        step, epsilon = finite(pair[0]), number(pair[1])
        if step is not None:
            points.append((step, math.nan if epsilon is None else epsilon))
    return points


def _pairs(data: Mapping[str, Any], key: str, path: Path) -> list[tuple[float, float]]:
    found = []
    for pair in _array(data, key, path):
        if not isinstance(pair, list) or len(pair) < 2:
            raise _malformed(path, f"{key!r} must be a list of pairs of rates")
        first, second = finite(pair[0]), finite(pair[1])
        if first is not None and second is not None:
            found.append((first, second))
    return found


def _attacked(audit: Mapping[str, Any] | None, path: Path) -> list[tuple[float, float]]:
    findings = [f for f in _array(audit or {}, "findings", path) if isinstance(f, dict)]
    best = max(findings, key=lambda f: finite(f.get("epsilon")) or 0.0, default={})
    return [(false, 1.0 - true) for false, true in _pairs(best, "roc", path)]


def _confusion(metrics: Mapping[str, Any], path: Path) -> Confusion | None:
    final = _object(metrics, "final", path)
    rows = _array(final, "confusion", path)
    if not rows:
        return None
    counts = [[finite(n) for n in row] if isinstance(row, list) else [] for row in rows]
    good = [[n for n in row if n is not None and n >= 0] for row in counts]
    if any(len(row) != len(rows) for row in counts + good):
        raise _malformed(path, "'confusion' must be a square table of counts")
    names = [" ".join(clean(str(name)).split()) for name in _array(final, "class_names", path)]
    names += [str(index) for index in range(len(names), len(rows))]
    return Confusion(counts=good, names=names[: len(rows)])
