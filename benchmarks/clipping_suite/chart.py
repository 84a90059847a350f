"""The bar chart of ratios to the best plain step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from clipping_suite.figures import Json, Row, all_rows

_COLOURS = {
    "plain SGD, default": "#999999",
    "tacit, native": "#0072B2",
    "tacit, torch only": "#56B4E9",
    "Opacus": "#D55E00",
    "fastDP": "#E69F00",
    "torch.func": "#009E73",
    "JAX": "#CC79A7",
    "jax_privacy": "#F0E442",
}
_FIXED: Any = {
    "font.size": 9,
    "svg.hashsalt": "tacit",
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def bars(rows: list[Row]) -> dict[str, float]:
    """The ratios of one workload to draw: each of ours, and the fastest mode of each peer."""
    shown: dict[str, float] = {}
    for row in rows:
        label = row.title if row.family in ("ours", "plain") else row.family
        if row.to_best is not None and label in _COLOURS:
            shown[label] = min(row.to_best, shown.get(label, float("inf")))
    return {label: shown[label] for label in _COLOURS if label in shown}


def draw(results: Json, path: Path) -> None:
    """Write the chart as SVG, the same bytes for the same results."""
    rows = all_rows(results)
    workloads = results["workloads"]
    with plt.rc_context(_FIXED):
        figure, axes = plt.subplots(figsize=(9, 1.2 + 1.15 * len(workloads)))
        width = 0.85 / len(_COLOURS)
        labelled: set[str] = set()
        for place, workload in enumerate(workloads):
            shown = bars([row for row in rows if row.workload == workload["name"]])
            for offset, (label, value) in enumerate(shown.items()):
                y = place + (offset - (len(shown) - 1) / 2) * width
                axes.barh(
                    y,
                    value,
                    width * 0.92,
                    color=_COLOURS[label],
                    edgecolor="black",
                    linewidth=0.3,
                    label=None if label in labelled else label,
                )
                axes.text(
                    value * 1.04,
                    y,
                    f"{value:.0f}" if value >= 10 else f"{value:.2g}",
                    va="center",
                    fontsize=6.5,
                )
                labelled.add(label)
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_xlabel("step time as a multiple of the best plain SGD step (log scale)")
        axes.set_ylabel("workload")
        axes.set_yticks(
            range(len(workloads)), [f"{w['title']}\nbatch {w['batch']}" for w in workloads]
        )
        axes.invert_yaxis()
        axes.margins(x=0.12)
        if labelled:
            axes.legend(
                fontsize=7.5,
                frameon=False,
                loc="lower center",
                bbox_to_anchor=(0.5, 1.0),
                ncols=4,
            )
        figure.tight_layout()
        figure.savefig(path, format="svg", metadata={"Date": None})
        plt.close(figure)
