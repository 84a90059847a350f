"""Accuracy over the clip norm (paper 003, Figures 7, 9 and 11), as tables and as one chart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from accuracy_suite import stored
from accuracy_suite.shown import table as markdown_table
from accuracy_suite.stored import Summary, summaries
from tacit.report import values

PAGE = "trials/batch-clipping-sweeps"
CHART = "batch-clipping-clip.svg"
_HELD_OUT = 5000
_LINES: dict[str, dict[str, str]] = {
    "layer by layer": {},
    "whole gradient": {"method.clipping": "flat"},
}
_STYLES: dict[str, Any] = {
    "layer by layer": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "whole gradient": {"color": "#D55E00", "marker": "s", "linestyle": "--"},
}
_FIXED: Any = {
    "font.size": 10,
    "svg.hashsalt": "tacit",
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True)
class Sweep:
    """A recipe at several clip norms, clipped in both ways under the same noise."""

    title: str
    recipe: str
    clips: tuple[float, ...]
    best_in_paper: float
    changes: dict[str, str] = field(default_factory=dict)

    def name(self, line: str, clip: float) -> str:
        """The name under which a point is trained and stored."""
        changes = {
            "data.holdout": str(_HELD_OUT),
            **self.changes,
            **_LINES[line],
            "method.clip": f"{clip:g}",
        }
        return " ".join([self.recipe, *(f"--set {key}={value}" for key, value in changes.items())])

    @property
    def names(self) -> list[str]:
        """All points."""
        return [self.name(line, clip) for clip in self.clips for line in _LINES]

    def points(self, line: str, runs: Mapping[str, Summary]) -> dict[float, Summary]:
        """What is stored of a line, as the recipe is today."""
        found = {clip: runs.get(self.name(line, clip)) for clip in self.clips}
        return {clip: run for clip, run in found.items() if run is not None and run.current}


SWEEPS = {
    "figure7": Sweep(
        "CIFAR-10, batches of 1,024",
        "003/short-cifar-bn",
        (0.025, 0.05, 0.1, 0.2, 0.4),
        0.1,
        {"training.batch_size": "1024", "training.learning_rate": "0.4"},
    ),
    "figure9": Sweep(
        "CIFAR-10, batches of 64", "003/short-cifar-bn", (0.035, 0.07, 0.14, 0.28, 0.56), 0.14
    ),
    "figure11": Sweep(
        "MNIST, batches of 64", "003/short-mnist-low-noise", (0.05, 0.1, 0.2, 0.4, 0.8), 0.2
    ),
}


def points() -> dict[str, Summary]:
    """All that was trained."""
    return summaries(stored.stored(PAGE))


def table(sweep: Sweep, runs: Mapping[str, Summary]) -> str:
    """One row for each clip norm, and a sentence on the best of each line."""
    lines = {line: sweep.points(line, runs) for line in _LINES}
    rows = [_row(clip, [points.get(clip) for points in lines.values()]) for clip in sweep.clips]
    best = [_best(line, points) for line, points in lines.items() if points]
    shown = markdown_table(["C", *_LINES, "proven ε", "claimed ε"], rows)
    return shown + ("\n\n" + "; ".join(best) + "." if best else "")


def _row(clip: float, runs: list[Summary | None]) -> list[str]:
    shown = ["not measured" if run is None else run.scored for run in runs]
    epsilons = [
        _largest([getattr(run, kind) for run in runs if run is not None])
        for kind in ("proven", "claimed")
    ]
    return [f"{clip:g}", *shown, *epsilons]


def _largest(found: list[float | None]) -> str:
    finite = [value for value in found if value is not None]
    return values.proven(max(finite)) if finite and len(finite) == len(found) else "none"


def _best(line: str, points: Mapping[float, Summary]) -> str:
    clip = max(points, key=lambda c: points[c].accuracy)
    return f"{line}: best at C = {clip:g} ({points[clip].accuracy:.2f})"


def draw(runs: Mapping[str, Summary], path: Path) -> None:
    """The chart as SVG, the same bytes for the same runs."""
    with plt.rc_context(_FIXED):
        figure, panels = plt.subplots(1, len(SWEEPS), figsize=(11, 3.8), squeeze=False)
        for axes, sweep in zip(panels[0], SWEEPS.values(), strict=True):
            _panel(axes, sweep, runs)
        panels[0][0].set_ylabel("accuracy on held-out records (%)")
        handles, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False)
        figure.tight_layout(rect=(0, 0, 1, 0.92))
        figure.savefig(path, format="svg", metadata={"Date": None})
        plt.close(figure)


def _panel(axes: Axes, sweep: Sweep, runs: Mapping[str, Summary]) -> None:
    for line in _LINES:
        points = sweep.points(line, runs)
        axes.errorbar(
            list(points),
            [run.accuracy for run in points.values()],
            yerr=[run.spread or 0.0 for run in points.values()],
            label=line,
            capsize=3,
            **_STYLES[line],
        )
    axes.axvline(sweep.best_in_paper, color="#777777", linestyle=":", label="the paper's best C")
    axes.set_xscale("log")
    axes.set_xticks(sweep.clips, [f"{clip:g}" for clip in sweep.clips])
    axes.minorticks_off()
    axes.set_xlabel("clip norm C")
    axes.set_title(sweep.title, fontsize=10)
