"""Ratios, means, page and chart from a small made-up results file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clipping_suite import figures, noise_speed
from clipping_suite.chart import bars, draw
from clipping_suite.extras import fine_pld
from clipping_suite.machine import PeakMemory
from clipping_suite.page import page

from tacit.privacy import accountants, events


def contestant(name: str, family: str, times: list[float], **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "title": f"title of {name}",
        "family": family,
        "status": "ok",
        "reason": "",
        "setting": "whole batch",
        "deviation": 2e-7,
        "times": times,
        "memory": 100.0,
        "memory_with_warmup": 120.0,
        "default_allocator": None,
        "tried": [],
    } | more


def workload(name: str, plain: float, ours: float, peer: float) -> dict[str, Any]:
    wrong = {"setting": "channels_last", "status": "disagrees", "reason": "its sum is off"}
    return {
        "name": name,
        "title": f"network {name}",
        "batch": 32,
        "contestants": [
            contestant("plain-default", "plain", [2 * plain], title="plain SGD, default"),
            contestant("plain", "plain", [9.0, plain, plain]),
            contestant("ours-torch", "ours", [ours], memory=150.0, title="tacit, torch only"),
            contestant(
                "ours-native", "ours", [], status="absent", reason="not | built", memory=None
            ),
            contestant("opacus-hooks", "Opacus", [peer], tried=[wrong]),
            contestant("opacus-ghost", "Opacus", [2 * peer]),
            contestant("jax", "JAX", [], status="too slow", reason="a step took 31 s"),
        ],
    }


@pytest.fixture
def results() -> dict[str, Any]:
    accounted = {
        "epsilon": 6.188,
        "seconds": 0.02,
        "allowed_seconds": 1.0,
        "reference": 6.187,
        "reference_interval": 1e-5,
        "relative_distance": 1.6e-4,
    }
    unknown = accounted | {"reference": None, "relative_distance": None}
    return {
        "run": {
            "command": "python benchmarks/clipping.py",
            "date": "2026-01-02",
            "minutes": 61.2,
            "load_before": 0.1,
            "processor": "a processor",
            "cores": 2,
            "threads": 2,
            "rounds": 3,
            "turns": 8,
            "steps": 3,
            "warmup": 3,
            "every_setting": True,
            "versions": {"ours": {"torch": "2.13.0"}, "peers": {"opacus": "1.6.0"}},
        },
        "workloads": [workload("a", 0.01, 0.012, 0.06), workload("b", 0.1, 0.3, 0.4)],
        "extras": {
            "noise": [
                {
                    "title": "tacit, torch only",
                    "status": "ok",
                    "parameters": 10_000_000,
                    "update_seconds": 0.004,
                    "noise_seconds": 0.03,
                    "noise_in_updates": 7.5,
                    "allowed_updates": 4,
                },
                {"title": "tacit, native", "status": "absent"},
            ],
            "accounting": {
                "equal_steps": accounted,
                "noise_levels": unknown,
                "solving": {"seconds": 0.8, "allowed_seconds": 3.0, "epsilon": 2.9999},
            },
            "large_batches": [
                {
                    "title": "tacit, torch only",
                    "batch": 16384,
                    "piece": 64,
                    "steps": 1,
                    "status": "ok",
                    "reason": "",
                    "memory": 812.0,
                    "seconds": 300.5,
                }
            ],
        },
    }


def test_ratios_are_of_medians_to_default_best_and_ours(results: dict[str, Any]) -> None:
    rows = {row.contestant: row for row in figures.rows_of(results["workloads"][0])}
    hooks = rows["opacus-hooks"]
    assert hooks.to_default == pytest.approx(3.0)
    assert hooks.to_best == pytest.approx(6.0)
    assert hooks.to_ours == pytest.approx(5.0)
    assert rows["ours-torch"].memory_to_plain == pytest.approx(1.5)
    assert rows["plain"].seconds == 0.01
    assert rows["jax"].seconds is None and rows["jax"].to_best is None


def test_means_are_geometric_and_leads_are_over_the_fastest_peer(results: dict[str, Any]) -> None:
    rows = figures.all_rows(results)
    ours = next(each for each in figures.overall(rows) if each.contestant == "ours-torch")
    assert ours.mean == pytest.approx((1.2 * 3.0) ** 0.5)
    assert ours.worst == pytest.approx(3.0)
    assert figures.lead(rows, "ours-torch") == pytest.approx({"a": 5.0, "b": 4 / 3})
    assert figures.lead(rows, "ours-native") == {}
    assert figures.geometric_mean([]) is None


def test_the_page_shows_every_contestant_and_whether_aims_are_met(results: dict[str, Any]) -> None:
    text = page(results, "speed.svg")
    assert "| torch only: slowest workload, to best plain | at most 1.7 | 3.00 | **no** |" in text
    assert "| torch only: ahead of the fastest peer, least | at least 1.3 | 1.33 | yes |" in text
    assert "| native: geometric mean, to best plain | at most 1.1 | — | not measured |" in text
    assert text.count("| title of ours-native | absent: not \\| built |") == 2
    assert text.count("| title of jax | too slow: a step took 31 s |") == 2
    assert "- title of opacus-hooks, channels_last: its sum is off" in text
    assert "| tacit, torch only | 30.0 | 4.0 | 7.5 |" in text
    assert "| tacit, native | absent | | |" in text
    assert "6.187000 (grid 1e-05) | 1.6e-04 |" in text
    assert "| tacit, torch only | 16384 | 64 | 1 | 812 | 300.50 |" in text
    assert "a processor, 2 cores, 2 threads" in text
    assert "- peers: opacus 1.6.0" in text
    tables = [line for line in text.splitlines() if line.startswith("| title of")]
    assert len({line.replace("\\|", "").count("|") for line in tables[-7:]}) == 1


def test_the_page_says_who_could_choose_a_setting(results: dict[str, Any]) -> None:
    assert "Everyone first tries memory layouts" in page(results, "speed.svg")
    results["run"]["every_setting"] = False
    assert "all others, ours included, run the whole batch" in page(results, "speed.svg")


def test_the_chart_names_its_axes_and_is_the_same_every_time(
    results: dict[str, Any], tmp_path: Path
) -> None:
    draw(results, tmp_path / "one.svg")
    draw(results, tmp_path / "two.svg")
    text = (tmp_path / "one.svg").read_text("utf-8")
    assert text == (tmp_path / "two.svg").read_text("utf-8")
    assert "multiple of the best plain SGD step (log scale)" in text
    assert "network a" in text and "Opacus" in text
    shown = bars(figures.rows_of(results["workloads"][0]))
    assert shown["Opacus"] == pytest.approx(6.0)
    assert list(shown) == ["plain SGD, default", "tacit, torch only", "Opacus"]


def test_noise_is_compared_with_update_passes() -> None:
    found = noise_speed.measured(5_000)
    assert found["noise_in_updates"] == found["noise_seconds"] / found["update_seconds"]
    assert found["noise_seconds"] > 0
    assert found["parameters"] == 5_000


def test_the_fine_reference_and_our_accountant_agree() -> None:
    schedule = [(1.5, 20), (1.0, 10)]
    steps = [events.repeated(events.poisson(0.01, events.gaussian(s)), n) for s, n in schedule]
    ours = accountants.epsilon(events.composed(steps), 1e-5)
    assert ours == pytest.approx(fine_pld(schedule, 1e-4), rel=1e-3)


def test_peak_memory_counts_what_was_freed_again() -> None:
    memory = PeakMemory()
    held = np.ones(40_000_000)
    peak = memory.megabytes()
    del held
    assert 250 < peak < 420
