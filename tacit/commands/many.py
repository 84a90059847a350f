"""Options that take several values at once: `--epsilon 1 3` for `--epsilon 1 --epsilon 3`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

_MANY = ("--epsilon",)


class ManyNumbers(TyperCommand):
    """A command whose --epsilon takes every number that follows it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread_out(args))


def spread_out(args: list[str]) -> list[str]:
    """The same arguments with the option repeated before each of its numbers.

    >>> spread_out(["digits", "--epsilon", "1", "3", "--jobs", "2"])
    ['digits', '--epsilon', '1', '--epsilon', '3', '--jobs', '2']
    """
    found: list[str] = []
    option = ""
    for place, text in enumerate(args):
        if option and _is_number(text) and args[place - 1] != option:
            found.append(option)
        elif not _is_number(text):
            option = text if text in _MANY else ""
        found.append(text)
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
