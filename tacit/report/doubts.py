"""Reasons not to rely on a run: what its files contradict and what its certificate warns of."""

from __future__ import annotations

import math
import re

from tacit.report import values
from tacit.report.load import Guarantee, Run
from tacit.report.markup import box, sentences

_NAMED = re.compile(r"ε\s*[=≤<]\s*(\d+(?:\.\d+)?(?:e-?\d+)?)")
_COARSER = 1.01  # a curve from a coarser accountant may end this much above the certificate


def alert(run: Run) -> str:
    """A red box with the contradictions, nothing where there are none."""
    return box("alert", "alert", "Do not rely on this yet", contradictions(run))


def warning(run: Run) -> str:
    """The certificate's own warnings, nothing where there are none."""
    found = sentences(run.certificate.get("warnings"))
    return box("warning", "note", "Warning" if len(found) == 1 else "Warnings", found)


def contradictions(run: Run) -> list[str]:
    """Where the numbers of the run cannot all be right."""
    if run.guarantee is None:
        return []
    checks = (_delta, _verdict, _relation, _audit, _curve)
    return [text for check in checks if (text := check(run, run.guarantee))]


def _delta(_: Run, guarantee: Guarantee) -> str:
    if guarantee.delta is not None:
        return ""
    return "The certificate gives no δ, and ε means nothing without it."


def _verdict(run: Run, guarantee: Guarantee) -> str:
    named = _NAMED.findall(str(run.certificate.get("verdict")))
    if all(float(epsilon) >= guarantee.epsilon for epsilon in named):
        return ""
    return (
        f"The verdict names ε = {min(named, key=float)}, less than the "
        f"{values.plain(guarantee.epsilon)} that the certificate promises."
    )


def _relation(run: Run, guarantee: Guarantee) -> str:
    proven = _proven(run, guarantee.relation)
    if proven is None or proven <= guarantee.epsilon:
        return ""
    return (
        f"The certificate promises ε = {values.plain(guarantee.epsilon)} for "
        f"{guarantee.relation}, but lists only ε = {values.plain(proven)} as proven for it."
    )


def _audit(run: Run, guarantee: Guarantee) -> str:
    audited = run.certificate.get("audited") or {}
    bound = values.number(audited.get("epsilon"))
    limit = _proven(run, audited.get("relation", guarantee.relation))
    limit = guarantee.epsilon if limit is None else limit
    if bound is None or not bound > limit:
        return ""
    return (
        f"The audit found ε of at least {values.plain(bound)}, more than the "
        f"{values.plain(limit)} that was proven. Unless the audit itself was wrong or unlucky, "
        "the program does not do what the proof assumes."
    )


def _curve(run: Run, guarantee: Guarantee) -> str:
    recorded = [epsilon for _, epsilon in run.epsilon_curve]
    recorded += [e.epsilon for e in run.evaluations if e.epsilon is not None]
    spent = max((e for e in recorded if not math.isnan(e)), default=0.0)
    if spent <= guarantee.epsilon * _COARSER or not run.same_delta:
        return ""
    return (
        f"metrics.json records ε = {values.proven(spent)} during training, more than the "
        f"{values.proven(guarantee.epsilon)} that the certificate promises."
    )


def _proven(run: Run, relation: object) -> float | None:
    return values.number((run.certificate.get("proven") or {}).get(str(relation)))
