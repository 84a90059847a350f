"""The trade-off curve of a run: what every attack must miss at each rate of false alarms."""

from __future__ import annotations

import numpy as np

from tacit.privacy.tradeoff import GaussianTradeOff
from tacit.report import values
from tacit.report.axes import BLUE, GREEN, VERMILLION, new_axes
from tacit.report.chart import Chart
from tacit.report.load import Run
from tacit.report.svg import SOFT
from tacit.report.values import finite

_SMALLEST_GAP = 1e-4


def trade_off(run: Run) -> Chart | None:
    """The proven curve against blind guessing, the claimed one and the audit's points beside it."""
    if not run.trade_off:
        return None
    figure, axes = new_axes("False alarms, share of non-members", "Misses, share of members")
    axes.plot([0, 1], [1, 0], color=SOFT, linestyle=(0, (2, 2)), linewidth=1.2)
    axes.annotate("blind guessing", (0.62, 0.40), color=SOFT, fontsize=9)
    alpha = np.array([point[0] for point in run.trade_off])
    proven = np.array([point[1] for point in run.trade_off])
    axes.plot(alpha, proven, color=GREEN, linewidth=2, label="proven: no attack is below")
    claimed = _claimed(run, alpha)
    if claimed is not None:
        dashes = (0, (5, 3))
        axes.plot(alpha, claimed, color=VERMILLION, linestyle=dashes, label="as the paper claims")
    if run.attacked:
        points = np.array(run.attacked)
        axes.plot(
            points[:, 0], points[:, 1], color=BLUE, linewidth=1.4, label="the attack that ran"
        )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    rows: list[list[object]] = [["false_alarms", "misses_proven", "misses_claimed"]]
    rows += [
        [a, b, "" if claimed is None else float(claimed[i])]
        for i, (a, b) in enumerate(run.trade_off)
    ]
    caption = (
        "An attacker who tells members from non-members misses at least this share of members at"
        f" each rate of false alarms; the dotted line is blind guessing."
        f"{_said(alpha, proven, claimed)}{_in_epsilon(run)}"
    )
    return Chart("trade-off", "What any attack must miss", caption, figure, rows)


def _claimed(run: Run, alpha: np.ndarray) -> np.ndarray | None:
    mu = finite((run.certificate.get("claimed") or {}).get("mu"))
    return None if mu is None else GaussianTradeOff(mu).misses(alpha)


def _in_epsilon(run: Run) -> str:
    """Whether the claim is too small at the certificate's own δ."""
    found = run.certificate.get("claimed") or {}
    claimed = finite(found.get("epsilon"))
    if finite(found.get("mu")) is None or claimed is None or run.guarantee is None:
        return ""
    if claimed >= run.guarantee.epsilon:
        return ""
    return (
        f" In ε it is too small: {values.claimed(claimed)} claimed where"
        f" {values.proven(run.guarantee.epsilon)} is proven."
    )


def _said(alpha: np.ndarray, proven: np.ndarray, claimed: np.ndarray | None) -> str:
    """Where the claimed curve promises more than is proven."""
    if claimed is None:
        return ""
    above = claimed > proven + _SMALLEST_GAP
    if not above.any():
        return " The paper's approximation lies nowhere above what is proven."
    rates = alpha[above]
    return (
        f" The paper's approximation promises more than is proven at {int(above.sum())} of"
        f" {len(above)} rates, from {rates.min():.3g} to {rates.max():.3g}, by up to"
        f" {float((claimed - proven).max()):.4f}."
    )
