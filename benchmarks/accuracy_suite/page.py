"""A page of results: its template with every figure filled in from stored JSON.

Placeholders are {KIND}, {KIND:RECIPE}, {KIND:RECIPE:MORE} or {KIND:FILE.json:KEY}; what there is of
them is described in benchmarks/README.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from sanitization_suite.section import section as sanitization_figures

from accuracy_suite import audit_tables, audited, clip_sweeps, held_out, stored
from accuracy_suite.contest import contest
from accuracy_suite.items import beside
from accuracy_suite.published import PUBLISHED
from accuracy_suite.shown import epsilon
from accuracy_suite.shown import table as markdown_table
from accuracy_suite.stored import Summary, recipe_of, run_pages, summaries
from accuracy_suite.versus import Versus
from tacit.data import published
from tacit.method_sections import BatchClippingRecipe
from tacit.papers.index import find
from tacit.privacy.batch_plan import BatchSchedule
from tacit.report import values

TEMPLATES = Path(__file__).parent.parent / "pages"
DATASETS = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar-10": "CIFAR-10",
    "imdb": "IMDb",
}
HEADINGS = (
    *("recipe", "proven ε", "claimed ε", "seeds", "accuracy"),
    *("the paper's", "steps", "noise", "time"),
)
_PLACEHOLDER = re.compile(r"\{(\w+)(?::([^{}]*))?\}")


class PageError(Exception):
    """A template asks for what is not there, or says what is no longer so."""


class NotStoredError(PageError):
    """A template asks for a recipe that was not measured."""


@dataclass(frozen=True)
class Sources:
    """Where the figures of a page come from: its own runs, those of all pages, other files."""

    own: dict[str, Summary]
    others: dict[str, Summary]
    folder: Path
    missing: str | None = None
    """What stands for runs that are not stored; without it they are an error."""

    def find(self, name: str) -> Summary | None:
        """A recipe's stored runs, this page's first."""
        return self.own.get(name) or self.others.get(name)

    def run(self, name: str) -> Summary:
        """The same, where there must be some."""
        found = self.find(name)
        if found is None:
            raise NotStoredError(f"no run of {name} is stored; measure it or leave it out")
        return found

    def value(self, file: str, key: str) -> Any:
        """A value of a JSON file, by the names and numbers on the way to it."""
        found = json.loads((self.folder / file).read_text("utf-8"))
        return reduce(lambda inner, part: inner[_index(part)], key.split("."), found)


def _index(part: str) -> int | str:
    return int(part) if part.isdigit() else part


def text_of(page: str) -> str:
    """docs/results/PAGE.md."""
    template = (TEMPLATES / f"{page}.md").read_text("utf-8")
    runs = {name: stored.stored(name) for name in run_pages()}
    others = summaries(run for found in runs.values() for run in found)
    return filled(template, Sources(summaries(runs.get(page, [])), others, stored.RESULTS))


def filled(template: str, sources: Sources) -> str:
    """The template with its placeholders replaced."""
    return _PLACEHOLDER.sub(lambda match: _figure(match[0], match[1], match[2], sources), template)


def _figure(whole: str, kind: str, given: str | None, sources: Sources) -> str:
    first, _, second = (given or "").partition(":")
    try:
        if given is None and kind in _SHARED:
            return shared(kind, sources.own.values())
        if kind in _SPECIAL:
            return _SPECIAL[kind](sources, first, second)
        if first.endswith(".json"):
            return _SHOWN[kind](sources.value(first, second))
        return _SHOWN[kind](getattr(sources.run(first), kind))
    except NotStoredError as error:
        if sources.missing is None:
            raise PageError(f"{whole}: {error}") from error
        return sources.missing
    except (AttributeError, KeyError, IndexError, OSError, TypeError, ValueError) as error:
        raise PageError(f"{whole} cannot be filled in: {error!r}") from error


def shared(key: str, own: Iterable[Summary]) -> str:
    """What all runs of the page have in common that have it at all."""
    runs = [run for summary in own for run in summary.runs]
    found = {_SHARED[key](run[key]) for run in runs if run[key] is not None}
    if len(found) != 1:
        raise PageError(f"the runs of this page have not one {key} but {sorted(found)}")
    return found.pop()


def setting(sources: Sources, name: str, key: str) -> str:
    """A value of a recipe by its dotted name; an error where stored runs had another recipe."""
    known = sources.find(name)
    if known is not None and not known.current:
        raise PageError(f"{name} has changed since its runs were made; measure it again")
    found: Any = reduce(getattr, key.split("."), recipe_of(name))
    return f"{found:,g}" if isinstance(found, (int, float)) else str(found)


def lead(sources: Sources, ahead: str, behind: str) -> str:
    """By how many points one recipe is ahead of another; an error where it is not."""
    points = sources.run(ahead).accuracy - sources.run(behind).accuracy
    if points < 0:
        raise PageError(f"{ahead} is not ahead of {behind} but {-points:.2f} points behind")
    return f"{points:.2f}"


def versus(sources: Sources, first: str, second: str) -> Versus:
    """Two recipes against each other, measured or not; that there are such is checked."""
    for name in (first, second):
        recipe_of(name)
    return Versus(sources.find(first), sources.find(second))


def planned(name: str, kind: str) -> str:
    """ε of a batch-clipping recipe that need not have run: what is proven, or claimed."""
    recipe = recipe_of(name)
    method, training, data = recipe.method, recipe.training, recipe.data
    assert isinstance(method, BatchClippingRecipe) and recipe.privacy.noise is not None
    schedule = BatchSchedule(
        published.DATASETS[data.name].train_records - data.holdout - data.public,
        training.batch_size,
        training.epochs,
        recipe.privacy.noise,
        method.sampling,
        method.mini_sets,
    )
    if kind == "proven":
        return epsilon(schedule.proven(recipe.privacy.delta))
    claim = schedule.claimed(recipe.privacy.delta)
    return epsilon(claim.epsilon if claim else None)


def chart(sources: Sources, file: str, title: str) -> str:
    """A drawing beside the page, where it has been made."""
    drawn = (sources.folder / file).exists()
    return f"![{title}]({file})" if drawn else f"{title}: not drawn."


def audit(sources: Sources, name: str, _: str) -> str:
    """What an attack found on the recipe, or else on its method."""
    return audited.of_method(recipe_of(name).method.name, sources.find(name), audited.audits())


def guarantee(sources: Sources, name: str, _: str) -> str:
    """Proven ε and the relation it is under."""
    run = sources.run(name)
    return f"{epsilon(run.proven)} {run.relation or ''}".rstrip()


def table(chosen: Iterable[Summary]) -> str:
    """One line for each recipe."""
    rows = [row_of(summary) for summary in chosen]
    return markdown_table(HEADINGS, rows) if rows else "Not measured."


def row_of(summary: Summary) -> list[str]:
    """A recipe over its seeds."""
    name = summary.name
    mark = "" if summary.current else " (an older form of it)"
    paper = f"{PUBLISHED[name]:.2f}" if name in PUBLISHED else "none"
    noise = "none" if summary.noise is None else f"{summary.noise:.4g}"
    return [
        *(f"`{name}`{mark}", epsilon(summary.proven), epsilon(summary.claimed)),
        *(str(summary.seeds), summary.scored, paper, str(summary.steps), noise),
        f"{summary.minutes:.1f} min",
    ]


_SHOWN: dict[str, Callable[[Any], str]] = {
    "accuracy": "{:.2f}".format,
    "ratio": "{:.3f}".format,
    "spread": "{:.2f}".format,
    "minutes": "{:.1f}".format,
    "proven": epsilon,
    "claimed": epsilon,
    "claimed_at_stop": epsilon,
    "audited": values.audited,
    "delta": values.delta,
    "noise": values.noise,
    "seeds": values.count,
    "steps": values.count,
    "stopped_after": values.count,
    "count": values.count,
    "scored": values.plain,
    "text": values.plain,
}
_SHARED: dict[str, Callable[[Any], str]] = {
    "delta": values.delta,
    "evaluated_on": values.plain,
    "relation": values.plain,
}
_SECTIONS: dict[str, Callable[[Path], str]] = {
    "sanitization-figures": sanitization_figures,
    **audit_tables.SECTIONS,
}
"""Parts of pages that are written elsewhere, from files of their own."""
_SPECIAL: dict[str, Callable[[Sources, str, str], str]] = {
    "table": lambda sources, prefix, _: table(
        summary for name, summary in sources.own.items() if name.startswith(prefix)
    ),
    "section": lambda sources, name, _: _SECTIONS[name](sources.folder),
    "guarantee": guarantee,
    "audit": audit,
    "audits": lambda sources, part, key: audit_tables.common(sources.folder, part, key),
    "lead": lead,
    "versus": lambda sources, first, second: versus(sources, first, second).text(),
    "claim": lambda sources, first, second: versus(sources, first, second).claim(),
    "contest": lambda sources, prefix, base: contest(prefix, base, sources.find, held_out.trials()),
    "item": lambda sources, name, data: beside(name, data, sources.find),
    "sweep": lambda _, name, __: clip_sweeps.table(clip_sweeps.SWEEPS[name], clip_sweeps.points()),
    "chart": chart,
    "planned": lambda _, name, kind: planned(name, kind),
    "setting": setting,
    "outcome": lambda sources, name, key: values.count(sources.run(name).outcome(key)),
    "printed": lambda _, item, name: f"{find(item).printed[name]:g}",
    "paper": lambda _, name, __: f"{PUBLISHED[name]:.2f}",
    "data": lambda _, name, __: DATASETS[recipe_of(name).data.name],
}
