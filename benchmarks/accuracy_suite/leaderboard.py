"""docs/results/leaderboard.md: every current run by dataset and proven ε, from stored JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from accuracy_suite import audited
from accuracy_suite.audited import Audit
from accuracy_suite.page import DATASETS
from accuracy_suite.shown import epsilon, table
from accuracy_suite.stored import Summary
from tacit.papers.index import Paper
from tacit.report import values

BUDGETS = (1.0, 3.0, 8.0)
SEEDS = 3
A_DAY = 24 * 60
WHOLE_RECORDS = ("add-or-remove-one", "zero-out", "replace-one")
HEADINGS = (
    *("ε proven", "under", "accuracy", "seeds", "method", "ε claimed", "ε audited", "time"),
    *("machine", "`tacit train …`"),
)


def page(
    runs: Iterable[Summary],
    attacks: list[Audit],
    papers: Sequence[Paper],
    minutes: Mapping[str, float],
) -> str:
    """The whole page; `minutes` says how long rows of the papers take."""
    runs = list(runs)
    current = [run for run in runs if run.current]
    parts = [_introduction(current), _best(current)]
    for data, title in DATASETS.items():
        parts += [f"## {title}", _table([r for r in current if r.data == data], attacks)]
    parts += _outdated([run for run in runs if not run.current])
    parts += [_too_long(papers, minutes)]
    return "\n\n".join(parts) + "\n"


def _introduction(current: Sequence[Summary]) -> str:
    deltas = sorted({values.delta(run.delta) for run in current})
    return f"""# Leaderboard

Every recipe that was measured as it is today, sorted by proven ε, then by accuracy. Accuracy is in
percent on the test set, treated as public: mean and standard deviation over seeds. Proven ε is the
largest over the seeds, rounded up, under the relation beside it; δ = {", ".join(deltas)}. Claimed ε
is the arithmetic of the paper that a method comes from, applied to our run, and no promise. Audited
ε is a lower bound found by an attack on the same recipe at the same ε. Time is that of a training,
without features, which are cached; most machines had other work beside it. Run a row
with `tacit train`, followed by what its last column says and `--data-dir DATA`.

Made by `make pages` from the JSON files in this folder, which hold a summary of every run."""


def _best(current: Sequence[Summary]) -> str:
    rows = [
        [title, *(_best_cell([r for r in current if r.data == data], b) for b in BUDGETS)]
        for data, title in DATASETS.items()
    ]
    return "\n".join(
        [
            "## Best proven recipe by budget",
            "",
            f"At least {SEEDS} seeds; the promise covers whole records, features and labels.",
            "",
            table(["dataset", *(f"ε ≤ {budget:g}" for budget in BUDGETS)], rows),
        ]
    )


def best(runs: Iterable[Summary], budget: float) -> Summary | None:
    """The most accurate run that protects whole records within a proven budget."""
    able = [
        run
        for run in runs
        if run.proven is not None
        and run.proven <= budget
        and run.relation in WHOLE_RECORDS
        and run.seeds >= SEEDS
    ]
    return max(able, key=lambda run: run.accuracy, default=None)


def _best_cell(runs: Sequence[Summary], budget: float) -> str:
    found = best(runs, budget)
    if found is None:
        return "not measured"
    return f"{found.scored}: `{found.name}` (ε = {epsilon(found.proven)}, {found.relation})"


def _table(runs: Sequence[Summary], attacks: list[Audit]) -> str:
    if not runs:
        return "Nothing was measured yet."
    return table(HEADINGS, (_row(run, attacks) for run in sorted(runs, key=_rank)))


def _rank(run: Summary) -> tuple[float, float]:
    """By ε as it is shown, so that equal ones are sorted by accuracy."""
    shown = float("inf") if run.proven is None else float(values.proven(run.proven))
    return shown, -run.accuracy


def _row(run: Summary, attacks: list[Audit]) -> list[str]:
    return [
        *(epsilon(run.proven), run.relation or "", run.scored, str(run.seeds)),
        *(values.method(run.method), epsilon(run.claimed), audited.of_run(run, attacks)),
        *(f"{run.minutes:.1f} min", run.machine, f"`{run.name}`"),
    ]


def _outdated(runs: Sequence[Summary]) -> list[str]:
    if not runs:
        return []
    names = ", ".join(f"`{run.name}`" for run in runs)
    return [
        "## To be measured again",
        f"The recipe has changed since its runs were made, so they are not shown here: {names}.",
    ]


def _too_long(papers: Sequence[Paper], minutes: Mapping[str, float]) -> str:
    reasons: dict[str, list[str]] = {}
    for paper in papers:
        for item in paper.items:
            name = f"{paper.number}/{item.name}"
            if item.too_long:
                reasons.setdefault(item.too_long, []).append(name)
            for row in item.rows:
                needed = minutes.get(row.command, 0.0)
                if needed > A_DAY:
                    reason = f"about {needed / 60:.0f} hours a run"
                    reasons.setdefault(reason, []).append(f"{name} ({row.what})")
    lines = [f"- {', '.join(names)}: {reason}." for reason, names in reasons.items()]
    return "\n".join(
        [
            "## What two cores cannot do",
            "",
            "Tables and figures of the papers, or rows of them, that would take more than a day",
            "for each run here. They are not filled in.",
            "",
            *lines,
        ]
    )
