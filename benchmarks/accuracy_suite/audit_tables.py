"""Tables of docs/results/audit.md, and what the audits of each have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from accuracy_suite.audited import Audit, all_audits
from accuracy_suite.shown import epsilon, table
from tacit.report import values

Finding = dict[str, Any]
_SHOWN: dict[str, Callable[[Any], str]] = {
    "delta": values.delta,
    "confidence": values.short_percent,
}


def common(folder: Path, part: str, key: str) -> str:
    """What the audits of a part found or were given by this name, where they agree."""
    rows = [row for row in all_audits(folder) if part in (row["part"], "all")]
    found = {_SHOWN.get(key, str)(value) for row in rows for value in _values(row, key)}
    if len(found) != 1:
        raise ValueError(f"the audits have not one {key} but {sorted(found)}")
    return found.pop()


def _values(row: Audit, key: str) -> Iterator[Any]:
    yield from (found[key] for found in row.get("findings", ()) if key in found)
    for option, value in pairwise(row["arguments"].split()):
        setting, _, chosen = value.partition("=")
        if option == f"--{key}":
            yield f"{int(value):,}"
        elif option == "--set" and setting == key:
            yield f"{float(chosen):,g}"


def canaries(rows: list[Audit]) -> str:
    """What gradient canaries showed of each method."""
    headings = (
        *("method", "ε claimed", "ε proven", "ε audited", "AUC (interval)"),
        *("highest AUC allowed", "relation", "coins", "seconds", "command"),
    )
    return table(headings, (_of_canaries(row, row["finding"]) for row in rows))


def _of_canaries(row: Audit, found: Finding) -> list[str]:
    return [
        *(row["name"], *_three(found), _auc(found), f"{found['highest_auc']:.3f}"),
        *(found["relation"], f"{found['coins']:,}", *_cost(row)),
    ]


def faults(rows: list[Audit]) -> str:
    """Which planted faults were found."""
    tried = [one for row in rows for one in row["tried"]]
    took = "".join(f"\n\n{row['seconds']:.0f} processor seconds." for row in rows)
    return table(("fault", "ε as charged", "ε audited", "found"), map(_of_fault, tried)) + took


def _of_fault(one: dict[str, Any]) -> list[str]:
    said = "yes" if one["finding"]["status"] == "broken" else "nothing"
    right = ", rightly" if one["harmless"] and one["passed"] else ""
    return [one["fault"], *_three(one["finding"])[1:], said + right]


def models(rows: list[Audit]) -> str:
    """What attacks on trained models showed, attack by attack."""
    headings = (
        *("training", "attack", "AUC (interval)", "highest AUC allowed", "TPR at 0.1 % FPR"),
        *("ε proven (replace-one)", "ε audited"),
    )
    shown = table(headings, (_of_model(row, found) for row in rows for found in row["findings"]))
    commands = "\n".join(f"    {row['command']}   # {row['seconds']:.0f} s" for row in rows)
    return f"{shown}\n\n{commands}"


def _of_model(row: Audit, found: Finding) -> list[str]:
    rate = found["true_positives"].get("0.001")
    shown = f"{rate['estimate']:.1%}" if rate else f"needs {found['coins_needed']['0.001']:,} coins"
    return [
        *(row["name"], found["attack"], _auc(found), f"{found['highest_auc']:.3f}"),
        *(shown, *_three(found)[1:]),
    ]


def columns(rows: list[Audit]) -> str:
    """What the columns of an encoder gave away."""
    headings = ("variant", "ε claimed", "ε proven", "ε audited", "verdict", "seconds", "command")
    return table(headings, (_of_columns(row, row["finding"]) for row in rows))


def _of_columns(row: Audit, found: Finding) -> list[str]:
    return [row["name"], *_three(found), found["status"], *_cost(row)]


def _three(found: Finding) -> tuple[str, str, str]:
    claimed = "none" if found["claimed"] is None else f"{found['claimed']:.3g}"
    return claimed, epsilon(found["proven"]), f"≥ {values.audited(found['epsilon'])}"


def _auc(found: Finding) -> str:
    auc = found["auc"]
    return f"{auc['estimate']:.3f} ({auc['low']:.3f}–{auc['high']:.3f})"


def _cost(row: Audit) -> tuple[str, str]:
    return f"{row['seconds']:.0f}", f"`{row['command']}`"


def _section(part: str, shown: Callable[[list[Audit]], str]) -> Callable[[Path], str]:
    return lambda folder: shown([row for row in all_audits(folder) if row["part"] == part])


SECTIONS = {
    f"audit-{shown.__name__}": _section(shown.__name__, shown)
    for shown in (canaries, faults, models, columns)
}
