"""Audits as docs/results/audit.json keeps them: which of them belongs to which stored run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from accuracy_suite import stored
from accuracy_suite.stored import Summary
from tacit.report import values

Audit = dict[str, Any]
NOT_AUDITED = "not audited"


def all_audits(folder: Path) -> list[Audit]:
    """All that was stored: attacks on recipes and on planted faults."""
    path = folder / "audit.json"
    found: list[Audit] = json.loads(path.read_text("utf-8")) if path.exists() else []
    return found


def audits() -> list[Audit]:
    """Those of recipes, not of planted faults; none where no audit was stored."""
    return [audit for audit in all_audits(stored.RESULTS) if "finding" in audit]


def of_run(summary: Summary, among: list[Audit]) -> str:
    """The strongest audit of this recipe at the very ε that is proven for its runs."""
    same = [a for a in among if a["recipe"] == summary.name and _same_proof(a, summary)]
    return _shown(_strongest(same)) if same else NOT_AUDITED


def of_method(method: str, run: Summary | None, among: list[Audit]) -> str:
    """That of the run, or else of its method, with the ε promised for what was attacked."""
    own = NOT_AUDITED if run is None else of_run(run, among)
    same = [audit for audit in among if audit["method"] == method]
    if own != NOT_AUDITED or not same:
        return own
    strongest = _strongest(same)
    return f"{_shown(strongest)} {_of(strongest['finding'])}"


def _same_proof(audit: Audit, summary: Summary) -> bool:
    found = audit["finding"]["proven"]
    if found is None or summary.proven is None:
        return found is summary.proven
    return values.proven(found) == values.proven(summary.proven)


def _strongest(among: list[Audit]) -> Audit:
    return max(among, key=lambda audit: float(audit["finding"]["epsilon"]))


def _shown(audit: Audit) -> str:
    finding = audit["finding"]
    return f"≥ {values.audited(finding['epsilon'])} ({finding['attack']})"


def _of(finding: dict[str, Any]) -> str:
    if finding["proven"] is not None:
        return f"where {values.proven(finding['proven'])} is proven"
    if finding["claimed"] is not None:
        return f"where {values.proven(finding['claimed'])} is claimed and nothing proven"
    return "where nothing is promised"
