"""Every page that is made from stored JSON: what it should say, and how it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import correlated_noise
import noise_law
from clipping_suite.page import page as speed_page

from accuracy_suite import leaderboard, stored
from accuracy_suite.audited import audits
from accuracy_suite.page import Sources, filled, text_of
from accuracy_suite.stored import Summary, run_pages, summaries
from tacit.papers.index import papers

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
METHODS = ROOT / "benchmarks" / "readme_methods.md"
MINUTES = ROOT / "tacit" / "papers" / "minutes.json"
OTHER_PAGES: dict[str, Callable[[Any], str]] = {
    "audit": lambda _: text_of("audit"),
    "correlated-noise": correlated_noise.page,
    "noise-law": noise_law.page,
    "speed": lambda found: speed_page(found, "speed.svg"),
}
"""Pages that are not about runs of recipes, by the file they are made from."""
BEGIN = "<!-- methods: made by `make pages` from benchmarks/readme_methods.md -->"
END = "<!-- end of methods -->"


def made() -> dict[Path, str]:
    """All files that follow from stored results, with the text that follows."""
    results, runs = stored.RESULTS, everything()
    times = minutes(runs.values())
    texts = {results / f"{page}.md": text_of(page) for page in run_pages()}
    for name, page in OTHER_PAGES.items():
        if (results / f"{name}.json").exists():
            texts[results / f"{name}.md"] = page(_read(results / f"{name}.json"))
    text = leaderboard.page(runs.values(), audits(), papers(), times)
    texts[results / "leaderboard.md"] = text
    texts[MINUTES] = json.dumps(times, indent=1) + "\n"
    texts[README] = with_methods(README.read_text("utf-8"), runs)
    return texts


def everything() -> dict[str, Summary]:
    """The stored runs of all pages by recipe."""
    return summaries(run for page in run_pages() for run in stored.stored(page))


def _read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def minutes(runs: Iterable[Summary]) -> dict[str, float]:
    """What a run of each row of the papers takes: as stored runs say, or an estimate."""
    path = stored.RESULTS / "paper-minutes.json"
    known: dict[str, float] = _read(path) if path.exists() else {}
    known |= {run.name: run.minutes for run in runs if run.current}
    rows = {row.command for paper in papers() for item in paper.items for row in item.rows}
    return {name: max(round(known[name], 1), 0.1) for name in sorted(rows) if name in known}


def with_methods(readme: str, runs: dict[str, Summary]) -> str:
    """README with its table of methods filled in, from runs of recipes as they are today."""
    before, marked, rest = readme.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not marked or not ended:
        raise ValueError(f"README.md has lost its marks: {BEGIN} … {END}")
    current = {name: run for name, run in runs.items() if run.current}
    sources = Sources({}, current, stored.RESULTS, missing="not measured")
    table = filled(METHODS.read_text("utf-8"), sources)
    return f"{before}{BEGIN}\n{table.strip()}\n{END}{after}"


def write_all() -> None:
    """Bring every such file up to date, and say which ones have changed."""
    for path, text in sorted(made().items()):
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"{path.name} is made again")
