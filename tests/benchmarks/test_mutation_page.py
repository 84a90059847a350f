"""The page of mutants says what is stored, and every survivor has a verdict."""

import json
from pathlib import Path

from mutation_suite import page

ROOT = Path(__file__).parents[2]
STORED = json.loads((ROOT / "docs" / "results" / "mutants.json").read_text("utf-8"))


def test_the_page_is_made_from_what_is_stored() -> None:
    made = page.written(STORED, page.judged())
    assert (ROOT / "docs" / "mutation.md").read_text("utf-8") == made


def test_every_survivor_is_judged_and_few_there_are() -> None:
    verdicts, files = page.judged(), STORED["files"]
    survivors = {
        file: {f"{one['before']} => {one['after']}" for one in entry["survived"].values()}
        for file, entry in files.items()
        if entry["survived"]
    }
    assert {file: set(found) for file, found in verdicts.items()} == survivors
    kinds = {kind for found in verdicts.values() for kind, _ in found.values()}
    assert kinds <= page.VERDICTS.keys()
    killed = sum(len(entry["killed"]) + len(entry["timed_out"]) for entry in files.values())
    survived = sum(len(entry["survived"]) for entry in files.values())
    assert killed >= 0.95 * (killed + survived)


def test_a_page_counts_what_tests_noticed() -> None:
    survived = {"Add#1": {"line": 3, "before": "a + b", "after": "a | b"}}
    entry = {"places": 9, "seconds": 90.0, "killed": ["x", "y"], "timed_out": ["z"]}
    stored = {"seed": 4, "each": 7, "files": {"f.py": {**entry, "survived": survived}}}
    made = page.written(stored, {"f.py": {"a + b => a | b": ("equivalent", "both are bits")}})
    assert "| `f.py` | 9 | 4 | 3 | 1 | 1 | 75.0 % |" in made
    assert "| `f.py` 3 | `a + b` | `a ¦ b` | equivalent: both are bits |" in made
    assert "hole: not judged yet" in page.written(stored, {})
