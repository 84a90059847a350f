"""docs/mutation.md: the share of mutants killed, and a verdict on each survivor."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
VERDICTS = {
    "equivalent": "no input that can occur gives another result",
    "safe": "results differ, but every bound stays valid and about as tight",
    "cost": "only time or memory differs",
}
Judged = dict[str, dict[str, tuple[str, str]]]


def judged() -> Judged:
    """By file and change: the kind of verdict, and the reason in one sentence."""
    found: Judged = json.loads((_HERE / "judged.json").read_text("utf-8"))
    return found


def written(stored: dict[str, Any], verdicts: Judged) -> str:
    """The page."""
    rows, survivors = [], []
    kinds: Counter[str] = Counter()
    everything = [0] * 4
    for file, entry in sorted(stored["files"].items()):
        numbers = [entry["places"], *(len(entry[k]) for k in ("killed", "timed_out", "survived"))]
        rows.append(_row(f"`{file}`", numbers))
        everything = [a + b for a, b in zip(everything, numbers, strict=True)]
        for one in sorted(entry["survived"].values(), key=lambda each: each["line"]):
            change = f"{one['before']} => {one['after']}"
            kind, reason = verdicts.get(file, {}).get(change, ("hole", "not judged yet"))
            kinds[kind] += 1
            before, after = _code(one["before"]), _code(one["after"])
            survivors.append(f"| `{file}` {one['line']} | {before} | {after} | {kind}: {reason} |")
    template = (_HERE / "page.md").read_text("utf-8")
    return template.format(
        share=_share(everything),
        sampled=sum(everything[1:]),
        each=stored["each"],
        seed=stored["seed"],
        minutes=round(sum(entry["seconds"] for entry in stored["files"].values()) / 60),
        rows="\n".join([*rows, _row("all", everything)]),
        verdicts="\n".join(
            f"- {kind} ({count}): {VERDICTS.get(kind, 'tests ought to notice')}"
            for kind, count in sorted(kinds.items())
        ),
        survivors="\n".join(survivors),
    )


def _row(name: str, numbers: list[int]) -> str:
    places, killed, timed_out, survived = numbers
    found = killed + timed_out
    sampled = found + survived
    cells = (name, places, sampled, found, timed_out, survived, _share(numbers))
    return f"| {' | '.join(map(str, cells))} |"


def _share(numbers: list[int]) -> str:
    _, killed, timed_out, survived = numbers
    return f"{100 * (killed + timed_out) / (killed + timed_out + survived):.1f} %"


def _code(text: str) -> str:
    return f"`{text.replace('|', '¦')}`" if text else "nothing"
