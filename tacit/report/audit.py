"""What an audit showed, as a part of a run's page or as a page of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.ticker import FuncFormatter, NullFormatter

from tacit.report import values
from tacit.report.axes import BLUE, VERMILLION, new_axes
from tacit.report.chart import Chart
from tacit.report.document import document, write_whole
from tacit.report.markup import bullets, details, escape, paragraph, section, table
from tacit.report.svg import SOFT, style

_LOWEST = 1e-4  # rates below this are not drawn
_READ = (
    "Audited ε is a lower bound: at least so much leaks, unless the attack was lucky, for which the"
    " confidence leaves room. It is no upper bound: that no attack here found more does not mean"
    " that none can. Where it exceeds what is proven, the proof or the program is wrong."
)


def audit_section(audit: Mapping[str, Any]) -> str:
    """Every attack with its numbers, its curve and what its bounds assume."""
    found = [one for one in audit.get("findings") or [] if isinstance(one, dict)]
    if not found:
        return ""
    with style():
        drawn = [chart.markup() for number, one in enumerate(found) if (chart := _roc(one, number))]
    private = (
        "These figures were computed from training records without noise: they are not covered by"
        " the guarantee."
    )
    return section(
        "audit",
        "Audit",
        bullets([str(one.get("verdict")) for one in found], ""),
        paragraph(_READ, "quiet"),
        paragraph(private if audit.get("on_training_records") else ""),
        _attacks(found),
        f'<div class="figures">{"".join(drawn)}</div>' if drawn else "",
        details("What each bound assumes", _bounds(found)),
    )


def write_audit(audit: Mapping[str, Any], target: Path) -> Path:
    """A page about an audit that belongs to no run."""
    title = str(audit.get("title") or "Audit")
    header = f'<header><p class="kicker">Privacy audit</p><h1>{escape(title)}</h1></header>'
    footer = "<footer><p>Made by tacit from audit.json. Audited ε is rounded down.</p></footer>"
    write_whole(target, document(f"{title} · tacit audit", header, audit_section(audit), footer))
    return target


def _attacks(found: list[dict[str, Any]]) -> str:
    head = [
        *("Attack", "ε audited", "ε proven", "AUC", "Highest AUC allowed"),
        *("TPR at 0.1 % FPR", "TPR at 1 % FPR", "Coins"),
    ]
    return table("Attacks", head, [_attack(one) for one in found])


def _attack(one: Mapping[str, Any]) -> list[str]:
    proven = one.get("proven")
    return [
        f"{values.plain(one.get('attack'))} ({values.plain(one.get('relation'))})",
        f"≥ {values.audited(one.get('epsilon'))}",
        values.INFINITE if proven is None else values.proven(proven),
        _interval(one.get("auc"), "{:.3f}"),
        _number(one.get("highest_auc"), "{:.3f}"),
        _found_at(one, "0.001"),
        _found_at(one, "0.01"),
        values.count(one.get("coins")),
    ]


def _found_at(one: Mapping[str, Any], false_positives: str) -> str:
    """The rate of true positives, or how many coins it takes to see one."""
    rates, needed = one.get("true_positives"), one.get("coins_needed")
    found = rates.get(false_positives) if isinstance(rates, dict) else None
    if found is None and isinstance(needed, dict) and false_positives in needed:
        return f"needs {values.count(needed[false_positives])} coins"
    return _interval(found, "{:.2%}")


def _interval(value: object, form: str) -> str:
    if not isinstance(value, dict):
        return values.UNKNOWN
    middle, low, high = (_number(value.get(key), form) for key in ("estimate", "low", "high"))
    return f"{middle} ({low}–{high})"


def _number(value: object, form: str) -> str:
    found = values.finite(value)
    return values.UNKNOWN if found is None else form.format(found)


def _bounds(found: list[dict[str, Any]]) -> str:
    rows = [
        (
            values.plain(one.get("attack")),
            values.plain(bound.get("name")),
            values.audited(bound.get("epsilon")),
            values.plain(bound.get("assumes")),
        )
        for one in found
        for bound in one.get("bounds") or []
        if isinstance(bound, dict)
    ]
    return table("Bounds", ("Attack", "Bound", "ε at least", "Assumes"), rows, words=(0, 1, 3))


def _roc(one: Mapping[str, Any], number: int) -> Chart | None:
    points = [point for point in one.get("roc") or [] if _is_point(point)]
    if len(points) < 2:
        return None
    figure, axes = new_axes("False positive rate", "True positive rate")
    for scale, axis in ((axes.set_xscale, axes.xaxis), (axes.set_yscale, axes.yaxis)):
        scale("log")
        axis.set_major_formatter(FuncFormatter(_rate))
        axis.set_minor_formatter(NullFormatter())
    line = [(max(x, _LOWEST), y) for x, y, _ in points if y > 0]
    limit = [(x, most) for x, _, most in points if x >= _LOWEST]
    diagonal = [_LOWEST, 1.0]
    axes.plot(diagonal, diagonal, color=SOFT, linestyle=(0, (2, 2)), label="guessing")
    if limit and min(most for _, most in limit) < 1:
        axes.plot(*zip(*limit, strict=True), color=VERMILLION, label="the most that is allowed")
    if line:
        axes.plot(*zip(*line, strict=True), color=BLUE, label="the attack")
    axes.set_xlim(_LOWEST, 1)
    axes.set_ylim(_LOWEST, 1.1)
    axes.legend(loc="upper left", frameon=False)
    name = values.plain(one.get("attack"))
    caption = (
        "How many of those who took part the attack finds, against how many others it accuses."
        " No attack can lie above the proven curve but by chance, which is large where few are"
        " accused."
    )
    rows = [("false positives", "true positives", "allowed"), *points]
    return Chart(f"roc-{number}", f"ROC curve: {name}", caption, figure, rows)


def _rate(share: float, _: int) -> str:
    return f"{100 * share:g} %"


def _is_point(point: object) -> bool:
    return (
        isinstance(point, list)
        and len(point) == 3
        and all(isinstance(x, int | float) and math.isfinite(x) for x in point)
    )
