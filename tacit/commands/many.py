"""Options that take several values at once: `--epsilon 1 3` for `--epsilon 1 --epsilon 3`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

_NUMBERS = ("--epsilon", "--epsilons")
_WORDS = ("--datasets",)


class ManyValues(TyperCommand):
    """A command in which these options take every value that follows them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread_out(args))


def spread_out(args: list[str]) -> list[str]:
    """The same arguments with the option repeated before each of its values.

    >>> spread_out(["digits", "--epsilon", "1", "3", "--jobs", "2"])
    ['digits', '--epsilon', '1', '--epsilon', '3', '--jobs', '2']
    """
    found: list[str] = []
    option = ""
    for place, text in enumerate(args):
        if option and _belongs(text, option):
            found += [option] if args[place - 1] != option else []
        else:
            option = text if text in (*_NUMBERS, *_WORDS) else ""
        found.append(text)
    return found


def _belongs(text: str, option: str) -> bool:
    if option in _WORDS:
        return not text.startswith("-")
    try:
        float(text)
    except ValueError:
        return False
    return True
