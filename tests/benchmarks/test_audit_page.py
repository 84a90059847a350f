"""The page of audits: its figures are those of stored audits, and none is typed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from accuracy_suite.page import TEMPLATES, PageError, Sources, filled
from accuracy_suite.stored import RESULTS
from audits import WANTED


def audit(part: str, arguments: str, **found: Any) -> dict[str, Any]:
    interval = {"estimate": 0.6, "low": 0.55, "high": 0.65}
    finding = {
        **{"attack": "canaries", "relation": "zero-out", "delta": 1e-5, "confidence": 0.95},
        **{"epsilon": 1.239, "proven": 3.991, "claimed": None, "coins": 60000, "auc": interval},
        **{"highest_auc": 0.7, "status": "consistent", "true_positives": {"0.001": interval}},
    } | found
    named = {"part": part, "name": "a method", "arguments": arguments, "seconds": 18.2}
    command = f"tacit audit {arguments}"
    return {**named, "command": command, "finding": finding, "findings": [finding]}


def shown(folder: Path, template: str, *rows: dict[str, Any]) -> str:
    (folder / "audit.json").write_text(json.dumps(rows), "utf-8")
    return filled(template, Sources({}, {}, folder))


def test_no_number_of_the_page_is_typed() -> None:
    template = (TEMPLATES / "audit.md").read_text("utf-8")
    words = re.sub(r"\{[^{}]*\}|[Pp]aper \d+|\(S\d\)", "", template)
    assert re.findall(r"\d+", words) == []


def test_every_audit_of_the_page_is_one_that_the_command_would_make() -> None:
    rows = json.loads((RESULTS / "audit.json").read_text("utf-8"))
    wanted = {one.name: one.command for one in WANTED}
    assert {row["name"]: row["command"] for row in rows} == wanted


def test_bounds_are_rounded_against_us(tmp_path: Path) -> None:
    row = audit("canaries", "mnist --runs 3")
    line = shown(tmp_path, "{section:audit-canaries}", row).splitlines()[-1]
    assert line == (
        "| a method | none | 4.00 | ≥ 1.23 | 0.600 (0.550–0.650) | 0.700 | zero-out | 60,000 | 18 |"
        " `tacit audit mnist --runs 3` |"
    )
    line = shown(tmp_path, "{section:audit-columns}", audit("columns", "x")).splitlines()[-1]
    assert line == "| a method | none | 4.00 | ≥ 1.23 | consistent | 18 | `tacit audit x` |"


def test_what_audits_have_in_common_is_shown_once_and_differences_are_an_error(
    tmp_path: Path,
) -> None:
    one = audit("models", "r --set privacy.epsilon=4 --pairs 1000")
    plain = audit("models", "r --set method.name=plain --pairs 1000")
    other = audit("canaries", "r --pairs 500", delta=1e-6)
    text = "{audits:models:pairs} pairs, ε = {audits:models:privacy.epsilon}, {audits:models:delta}"
    assert shown(tmp_path, text, one, plain, other) == "1,000 pairs, ε = 4, 1e-5"
    assert shown(tmp_path, "{audits:all:confidence}", one, other) == "95%"
    with pytest.raises(PageError, match=r"not one delta but \['1e-5', '1e-6'\]"):
        shown(tmp_path, "{audits:all:delta}", one, other)


def test_figures_of_a_paper_come_from_its_file(tmp_path: Path) -> None:
    placeholder = "{printed:001/table3:AUC, black-box, without privacy}"
    assert shown(tmp_path, placeholder) == "0.732"
