"""The recipes of a contest in one table: their search, their accuracy, and who wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from accuracy_suite.held_out import STARTS, Search, settings_of
from accuracy_suite.shown import epsilon, table
from accuracy_suite.stored import Summary
from accuracy_suite.versus import Versus

_HEADINGS = (
    *("recipe", "clip", "rate", "trials", "held out"),
    *("test", "seeds", "proven ε", "claimed ε"),
)


def contest(
    prefix: str,
    base: str,
    runs: Callable[[str], Summary | None],
    trials: Mapping[str, Summary],
) -> str:
    """The searched recipes whose names begin so, each set against one of them."""
    searches = [Search(name, trials) for name in STARTS if name.startswith(prefix)]
    headings = [*_HEADINGS, f"against `{_short(base, prefix)}`"]
    return table(headings, (_row(search, base, runs) for search in searches))


def _row(search: Search, base: str, runs: Callable[[str], Summary | None]) -> list[str]:
    name, accuracy = search.recipe, search.adopted_accuracy
    run = runs(name)
    clip, rate = settings_of(name)
    return [
        f"`{name}`",
        f"{clip:g}",
        f"{rate:g}",
        str(len(search.found)),
        "not tried" if accuracy is None else f"{accuracy:.2f}",
        *_measured(run if run is not None and run.current else None),
        "" if name == base else _against(Versus(run, runs(base))),
    ]


def _measured(run: Summary | None) -> list[str]:
    if run is None:
        return ["not measured", "0", "", ""]
    return [run.scored, str(run.seeds), epsilon(run.proven), epsilon(run.claimed)]


def _against(versus: Versus) -> str:
    if versus.pair is None or versus.interval is None:
        return versus.verdict
    low, high = versus.interval
    return f"{versus.verdict} ({low:+.2f} to {high:+.2f})".replace("-", "−")


def _short(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lstrip("-")
