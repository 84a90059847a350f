"""A run that cannot be read or written is refused with its path and a way out."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tacit.errors import RunError
from tacit.report import write_report


def write_run(path: Path, title: str = "A run") -> Path:
    path.mkdir(exist_ok=True)
    (path / "certificate.json").write_text(json.dumps({"title": title}), encoding="utf-8")
    (path / "metrics.json").write_text("{}", encoding="utf-8")
    (path / "certificate.txt").write_text("As text.", encoding="utf-8")
    (path / "recipe.toml").write_text("", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("certificate.json", None),
        ("certificate.txt", None),
        ("metrics.json", None),
        ("recipe.toml", None),
        ("certificate.json", "{"),
        ("certificate.json", "[]"),
        ("certificate.json", "{}"),
        ("certificate.json", '{"title": "t", "guarantee": 3}'),
        ("certificate.json", '{"title": " "}'),
        ("metrics.json", '{"evaluations": {}}'),
        ("metrics.json", '{"evaluations": [1]}'),
        ("metrics.json", '{"epsilon_curve": [[1]]}'),
        ("metrics.json", '{"final": {"confusion": [[1, 2]]}}'),
        ("metrics.json", '{"final": {"confusion": [[-1]]}}'),
        ("metrics.json", '{"final": 1}'),
        ("metrics.json", "[" * 100_000),
        ("recipe.toml", b"\xff\xfe"),
    ],
)
def test_damaged_runs_name_the_file_and_the_way_out(
    tmp_path: Path, name: str, content: str | bytes | None
) -> None:
    run = write_run(tmp_path / "run")
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(RunError, match=re.escape(name)) as caught:
        write_report(run)
    assert "tacit train" in str(caught.value)
    assert not (run / "report.html").exists()


def test_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="absent"):
        write_report(tmp_path / "absent")


def test_a_failed_write_keeps_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = write_report(write_run(tmp_path, "Old"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match=r"report\.html.*No space"):
        write_report(write_run(tmp_path, "New"))
    assert "Old" in old.read_text(encoding="utf-8")
    assert not list(tmp_path.glob(".report*"))
