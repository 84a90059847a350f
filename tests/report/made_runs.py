"""Run directories made up file by file, and their pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from html_page import Page

from tacit.report import write_report

Json = dict[str, Any]


def certificate(**changes: Any) -> Json:
    return {
        "title": "A run",
        "verdict": "Proven (ε = 3.00, δ = 1e-5) for any one training record",
        "method": "dpsgd",
        "guarantee": {
            "epsilon": 2.9994,
            "delta": 1e-5,
            "relation": "add-or-remove-one",
            "unit": "one training record",
        },
        "proven": {"add-or-remove-one": 2.9994, "replace-one": 4.8701},
        "claimed": {"epsilon": 2.931, "source": "a paper's accountant"},
        "audited": {"epsilon": 0.8374, "confidence": 0.95, "attack": "canaries"},
        "not_covered": ["Several records of one person."],
        "versions": {"tacit": "0.1.0"},
        "weights_sha256": "b41d" * 16,
        "warnings": ["Stopped early."],
        **changes,
    }


def metrics(evaluations: int = 6, classes: int = 3, **changes: Any) -> Json:
    rows = [
        {
            "step": 100 * i,
            "epoch": float(i),
            "seconds": 1.5 * i,
            "epsilon": 2.9994 * i / evaluations,
            "loss": 1 / i,
            "accuracy": 0.97316 - 0.1 / i,
        }
        for i in range(1, evaluations + 1)
    ]
    table = [[90 if i == j else i for j in range(classes)] for i in range(classes)]
    names = [f"class {i}" for i in range(classes)]
    return {
        "evaluations": rows,
        "evaluated_on": "test set (public)",
        "final": {"accuracy": 0.97316, "loss": 0.14321, "confusion": table, "class_names": names},
        "epsilon_curve": [[100 * i, 2.9994 * i / 6] for i in range(7)],
        "delta": 1e-5,
        "training_seconds": 312.4,
        **changes,
    }


def write_run(path: Path, certificate: Json, metrics: Json, text: str = "As text.") -> Path:
    path.mkdir(exist_ok=True)
    (path / "certificate.json").write_text(json.dumps(certificate), encoding="utf-8")
    (path / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    (path / "certificate.txt").write_text(text, encoding="utf-8")
    (path / "recipe.toml").write_text("[privacy]\nepsilon = 3.0\n", encoding="utf-8")
    return path


def page(path: Path, certificate: Json, metrics: Json, text: str = "As text.") -> Page:
    report = write_report(write_run(path, certificate, metrics, text))
    assert report == path / "report.html"
    assert not list(path.glob(".report*"))
    return Page(report.read_text(encoding="utf-8"))
