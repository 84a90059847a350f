"""What the papers show, item by item, read from the TOML files beside this module.

Figures of the papers stand there as printed; ours never do: they come from runs. How long those
take on one thread of a machine with two cores is in minutes.json, written by `make pages`.
"""

from __future__ import annotations

import json
import sys
from difflib import get_close_matches
from functools import lru_cache
from importlib import resources
from typing import Any, Literal

from pydantic import Field, model_validator

from tacit import config
from tacit.config import Recipe
from tacit.errors import ArgumentError
from tacit.recipe_sections import Section

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Row(Section):
    """One figure of a paper, with the recipe that repeats it here."""

    what: str
    recipe: str
    accuracy: float | None = None
    """In percent, as printed."""
    epsilon: float | None = None
    """As printed; the paper's own claim."""
    equal: Literal["proven", "claimed", "neither"] = "proven"
    """Which ε of our run is held at the paper's."""
    changes: dict[str, str] = Field(default_factory=dict)
    """Values of the recipe that this row changes, by dotted name."""

    def wanted(self, seed: int | None = None) -> Recipe:
        """The recipe of this row."""
        seeded = {} if seed is None else {"run.seed": str(seed)}
        return config.load(self.recipe, {**self.changes, **seeded})

    @property
    def dataset(self) -> str:
        """The data that it needs."""
        return self.wanted().data.name

    @property
    def command(self) -> str:
        """What `tacit train` is given for it, such as "mnist --epsilon 1"."""
        changes = dict(self.changes)
        epsilon = changes.pop("privacy.epsilon", None)
        options = [f"--epsilon {epsilon}"] if epsilon else []
        return " ".join([self.recipe, *options, *(f"--set {k}={v}" for k, v in changes.items())])

    @property
    def minutes(self) -> float | None:
        """What a run takes, from runs that were made or from the first steps of one."""
        return _minutes().get(self.command)


class Item(Section):
    """A table or a figure. It has rows, or a command that draws it, or a reason why not.

    `not_here`: there is nothing to repeat. `too_long`: there is, but not on two cores in a day.
    """

    name: str
    title: str
    rows: tuple[Row, ...] = ()
    printed: dict[str, float] = Field(default_factory=dict)
    """Figures of the paper that are no accuracy of a row."""
    drawn_by: str = ""
    not_here: str = ""
    too_long: str = ""

    @model_validator(mode="after")
    def _leads_somewhere(self) -> Item:
        if not (self.rows or self.drawn_by or self.not_here or self.too_long):
            raise ValueError(f"{self.name} has no rows, no command and no reason")
        return self

    @property
    def remark(self) -> str:
        """Why it is not trained, or how it is drawn."""
        return self.not_here or self.too_long or self.drawn_by

    @property
    def datasets(self) -> list[str]:
        """What its rows need."""
        return sorted({row.dataset for row in self.rows})

    def chosen(self, datasets: list[str] | None, epsilons: list[float] | None) -> tuple[Row, ...]:
        """The rows on these data and at these printed ε; all where nothing is asked for."""
        unknown = sorted(set(datasets or ()) - set(self.datasets))
        if unknown:
            raise ArgumentError(
                f"datasets is {', '.join(unknown)}, which {self.name} does not use; it uses:"
                f" {', '.join(self.datasets) or 'none'}"
            )
        rows = tuple(
            row
            for row in self.rows
            if (not datasets or row.dataset in datasets)
            and (not epsilons or row.epsilon in epsilons)
        )
        if not rows:
            printed = sorted({row.epsilon for row in self.rows if row.epsilon is not None})
            raise ArgumentError(
                f"no row of {self.name} is left; its ε are: {', '.join(f'{e:g}' for e in printed)}"
                if self.rows
                else f"{self.name} is not trained: {self.remark}"
            )
        return rows


class Paper(Section):
    """One of the four papers; its tables, then its figures, by number."""

    number: str
    title: str
    authors: str = ""
    """As the paper names them, nothing where our copy of it does not."""
    items: tuple[Item, ...]


@lru_cache(maxsize=1)
def _minutes() -> dict[str, float]:
    text = (resources.files("tacit") / "papers" / "minutes.json").read_text("utf-8")
    found: dict[str, float] = json.loads(text)
    return found


@lru_cache(maxsize=1)
def papers() -> tuple[Paper, ...]:
    """All papers, in order."""
    folder = resources.files("tacit") / "papers"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return tuple(Paper.model_validate(_read(file)) for file in files)


def _read(file: Any) -> dict[str, Any]:
    values: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
    return values


def find(name: str) -> Item:
    """The item that is called PAPER/ITEM.

    >>> find("002/table1").rows[0].accuracy
    92.22
    """
    known = {f"{paper.number}/{item.name}": item for paper in papers() for item in paper.items}
    if name in known:
        return known[name]
    near = get_close_matches(name, known, 1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ArgumentError(f"{name!r} is not a table or figure here; {hint}see: tacit papers")
