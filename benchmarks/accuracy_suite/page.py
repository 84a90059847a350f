"""A page of results: its template with every figure filled in from stored JSON.

Placeholders are described in benchmarks/README.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from accuracy_suite import audited, stored
from accuracy_suite.published import PUBLISHED
from accuracy_suite.stored import Summary, recipe_of, run_pages, summaries
from tacit.report import values

TEMPLATES = Path(__file__).parent.parent / "pages"
DATASETS = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar-10": "CIFAR-10",
    "imdb": "IMDb",
}
_PLACEHOLDER = re.compile(r"\{(\w+)(?::([^{}]*))?\}")
HEAD = (
    "| recipe | proven ε | claimed ε | seeds | accuracy | the paper's | steps | noise | time |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
SHOWN: dict[str, Callable[[Any], str]] = {
    "accuracy": "{:.2f}".format,
    "spread": "{:.2f}".format,
    "minutes": "{:.1f}".format,
    "proven": values.proven,
    "claimed": values.proven,
    "audited": values.audited,
    "delta": values.delta,
    "noise": values.noise,
    "seeds": values.count,
    "steps": values.count,
    "count": values.count,
    "relation": values.plain,
    "text": values.plain,
}
_SHARED: dict[str, Callable[[Any], str]] = {
    "delta": values.delta,
    "evaluated_on": values.plain,
    "relation": values.plain,
}


class PageError(Exception):
    """A template asks for what is not there, or says what is no longer so."""


class NotStoredError(PageError):
    """A template asks for a recipe that was not measured."""


def text_of(page: str) -> str:
    """docs/results/PAGE.md."""
    template = (TEMPLATES / f"{page}.md").read_text("utf-8")
    own = summaries(stored.stored(page))
    others = summaries(run for other in run_pages() for run in stored.stored(other))
    return filled(template, Sources(own, others, stored.RESULTS))


@dataclass(frozen=True)
class Sources:
    """Where the figures of a page come from: its own runs, those of all pages, other files."""

    own: dict[str, Summary]
    others: dict[str, Summary]
    folder: Path
    missing: str | None = None
    """What stands for runs that are not stored; without it they are an error."""

    def run(self, name: str) -> Summary:
        """A recipe's stored runs, this page's first."""
        found = self.own.get(name) or self.others.get(name)
        if found is None:
            raise NotStoredError(f"no run of {name} is stored; measure it or leave it out")
        return found

    def value(self, file: str, key: str) -> Any:
        """A value of a JSON file, by the names and numbers on the way to it."""
        found = json.loads((self.folder / file).read_text("utf-8"))
        return reduce(lambda inner, part: inner[_index(part)], key.split("."), found)


def _index(part: str) -> int | str:
    return int(part) if part.isdigit() else part


def filled(template: str, sources: Sources) -> str:
    """The template with its placeholders replaced."""
    return _PLACEHOLDER.sub(lambda match: _figure(match[0], match[1], match[2], sources), template)


def _figure(whole: str, kind: str, given: str | None, sources: Sources) -> str:
    first, _, second = (given or "").partition(":")
    try:
        if given is None and kind in _SHARED:
            return shared(kind, sources.own.values())
        if kind == "table":
            return table(s for s in sources.own.values() if s.name.startswith(first))
        if kind == "setting":
            return setting(first, second, sources)
        if kind == "data":
            return DATASETS[recipe_of(first).data.name]
        if kind == "lead":
            return lead(sources.run(first), sources.run(second))
        if kind == "outcome":
            return values.count(sources.run(first).outcome(second))
        if kind == "scored":
            return accuracy(sources.run(first))
        if kind == "audit":
            return audited.of_method(sources.run(first), audited.audits())
        if kind == "paper":
            return f"{PUBLISHED[first]:.2f}"
        if first.endswith(".json"):
            return SHOWN[kind](sources.value(first, second))
        if kind == "guarantee":
            return (
                f"{epsilon(sources.run(first).proven)} {sources.run(first).relation or ''}".rstrip()
            )
        return SHOWN[kind](getattr(sources.run(first), kind))
    except NotStoredError as error:
        if sources.missing is None:
            raise PageError(f"{whole}: {error}") from error
        return sources.missing
    except (AttributeError, KeyError, IndexError, OSError, TypeError, ValueError) as error:
        raise PageError(f"{whole} cannot be filled in: {error!r}") from error


def shared(key: str, own: Iterable[Summary]) -> str:
    """What all runs of the page have in common."""
    found = {_SHARED[key](run[key]) for summary in own for run in summary.runs}
    if len(found) != 1:
        raise PageError(f"the runs of this page have not one {key} but {sorted(found)}")
    return found.pop()


def setting(name: str, key: str, sources: Sources) -> str:
    """A value of a recipe by its dotted name; an error where stored runs had another recipe."""
    known = sources.own.get(name) or sources.others.get(name)
    if known is not None and not known.current:
        raise PageError(f"{name} has changed since its runs were made; measure it again")
    found: Any = recipe_of(name)
    for part in key.split("."):
        found = getattr(found, part)
    return f"{found:,g}" if isinstance(found, (int, float)) else str(found)


def lead(ahead: Summary, behind: Summary) -> str:
    """By how many points one recipe is ahead of another; an error where it is not."""
    points = ahead.accuracy - behind.accuracy
    if points < 0:
        raise PageError(f"{ahead.name} is not ahead of {behind.name} but {-points:.2f} behind")
    return f"{points:.2f}"


def table(chosen: Iterable[Summary]) -> str:
    """One line for each recipe."""
    return "\n".join([HEAD, *(line_of(summary) for summary in chosen)])


def line_of(summary: Summary) -> str:
    """One row of the table: a recipe over its seeds."""
    name = summary.name
    mark = "" if summary.current else " (an older form of it)"
    paper = f"{PUBLISHED[name]:.2f}" if name in PUBLISHED else "none"
    noise = "none" if summary.noise is None else f"{summary.noise:.4g}"
    return (
        f"| `{name}`{mark} | {epsilon(summary.proven)} | {epsilon(summary.claimed)} |"
        f" {summary.seeds} | {accuracy(summary)} | {paper} | {summary.steps} |"
        f" {noise} | {summary.minutes:.1f} min |"
    )


def accuracy(summary: Summary) -> str:
    """Mean and standard deviation over the seeds."""
    spread = "" if summary.spread is None else f" ± {summary.spread:.2f}"
    return f"{summary.accuracy:.2f}{spread}"


def epsilon(value: float | None) -> str:
    """An upper bound, rounded up."""
    return "none" if value is None else values.proven(value)
