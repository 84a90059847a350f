"""Figures of a run with noised activations."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import tacit
from tacit.config import Recipe
from tacit.models import SanitizationLayer
from tacit.report.load import load_run
from tacit.report.page import render
from tacit.report.plots import charts
from tacit.report.sanitization_plots import sanitization_charts

TRACE = {
    "spread": [1.0, 1.2, 1.21, 1.21],
    "threshold": [0.5, 0.6, 0.7, 0.8],
    "norm": [5.0, 6.0, 7.0, 8.0],
    "flags": [4],
    "flag_mode": "flag",
    "slopes": [[1, 1.0, 3, 1.21], [2, 1.2, 4, 1.21]],
    "flags_around": {"window 1, slope 0.1": [3, 4], "window 2, slope 0.1": []},
}


def test_flags_and_threshold_are_drawn_and_the_denial_is_shown(tmp_path: Path) -> None:
    recipe = Recipe.parse(
        {
            "method": {"name": "sanitization", "guarantee": "paper", "stop": "flag", "window": 1},
            "privacy": {"noise": 1.0},
            "training": {"epochs": 3, "batch_size": 20},
            "run": {"seed": 0},
        }
    )
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), SanitizationLayer(), nn.Linear(6, 2))
    data = torch.randn(60, 4), torch.arange(60) % 2
    tacit.fit(model, data, test=data, recipe=recipe, out=tmp_path / "run")
    run = load_run(tmp_path / "run")
    names = [chart.name for chart in charts(run)]
    assert "spread" in names and "claimed" in names and "threshold" not in names
    drawn = {chart.name: chart for chart in charts(replace(run, metrics={"sanitization": TRACE}))}
    assert "1 stopping flags" in drawn["spread"].caption
    assert "slopes of the windows" in drawn["spread"].caption
    lines = [tuple(line.get_xdata()) for line in drawn["spread"].figure.axes[0].get_lines()]
    assert (1, 3) in lines and (2, 4) in lines
    assert run.metrics["sanitization"]["slopes"][0][::2] == [1, 2]
    assert drawn["spread"].rows[-1] == (4, 1.21, 1)
    first, second = drawn["flags-around"].figure.axes
    assert [len(axes.get_lines()) for axes in (first, second)] == [3, 1]
    assert first.get_title() == "window 1, slope 0.1: 2"
    assert drawn["flags-around"].rows[1:] == [
        ("window 1, slope 0.1", "3 4"),
        ("window 2, slope 0.1", ""),
    ]
    assert len(run.metrics["sanitization"]["flags_around"]) == 6
    assert drawn["threshold"].rows[1] == (1, 0.5, 5.0)
    for odd in ({}, {"sanitization": 3}, {"sanitization": {"spread": "x", "flags": None}}):
        assert sanitization_charts(replace(run, metrics=odd)) == []
    page = render(run)
    assert "No guarantee for the weights follows" in page
