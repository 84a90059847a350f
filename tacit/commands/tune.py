"""`tacit tune`: search over settings, on public data or charged to the one budget."""

from __future__ import annotations

from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import JustifyMethod
from rich.table import Table

from tacit.commands.output import AsJson, errors, print_json, screen
from tacit.commands.train import changes_from, show_run
from tacit.errors import ArgumentError
from tacit.report import values

if TYPE_CHECKING:
    from tacit.config import Recipe
    from tacit.tune import Tuned


class On(str, Enum):
    """Which records the search looks at."""

    PUBLIC = "public"
    PRIVATE = "private"


class Score(str, Enum):
    """What the runs of a private search are compared by."""

    PUBLIC = "public"
    CHARGED = "charged"


def tune(
    what: Annotated[
        str, typer.Argument(metavar="DATA|RECIPE", help="A recipe, or data, as for tacit train.")
    ],
    tried: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="KEY=VALUES",
            help="What may change: method.clip=0.1..1 or training.batch_size=256,512. Repeat it.",
        ),
    ] = None,
    on: Annotated[
        On | None,
        typer.Option(
            help="public: other records, free of charge. private: these records, charged."
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The budget for everything: ε proven at most.")
    ] = None,
    public_data: Annotated[
        str | None,
        typer.Option(help="public: a dataset, or a file whose records get no protection."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="public: how many settings to try.")] = 20,
    runs: Annotated[
        float, typer.Option(min=1, help="private: how many runs to expect; the number is random.")
    ] = 10.0,
    law: Annotated[
        str,
        typer.Option(help="private: geometric, logarithmic, poisson, or a shape as a number."),
    ] = "geometric",
    score: Annotated[
        Score,
        typer.Option(
            help="private: compare runs on held-out records without protection, or by a noisy count"
            " over the training records, which is charged."
        ),
    ] = Score.PUBLIC,
    score_noise: Annotated[
        float | None, typer.Option(help="private: noise on that count; 1 % of the records.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Train so many at once, with one thread each.")
    ] = 1,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any recipe value.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Where everything goes; give it again to go on.")
    ] = Path("tuned"),
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets lie.")] = None,
    json: AsJson = False,
) -> None:
    """Search over settings under one budget, then release one certified model.

    The same command continues after an interruption, with the runs it would have made.
    """
    from tacit.board import ProgressBoard, SilentBoard
    from tacit.progress import ProgressBar, Silent
    from tacit.train import recipe_for
    from tacit.tune import tune_on_public, tune_privately

    overrides = {} if epsilon is None else {"privacy.epsilon": repr(epsilon)}
    recipe = recipe_for(what, {**overrides, **changes_from(changes or [])})
    space = changes_from(tried or [], "--try")
    if on is None:
        raise ArgumentError(
            "--on is missing: public searches on other records (--public-data) and costs nothing,"
            " private searches on these records and is charged to the budget"
        )
    if on is On.PUBLIC:
        if public_data is None:
            raise ArgumentError("--on public needs --public-data: records without protection")
        tuned = tune_on_public(
            recipe,
            space,
            public_data,
            out=out,
            trials=trials,
            jobs=jobs,
            data_dir=data_dir,
            board=SilentBoard() if json else ProgressBoard(errors),
            watcher=Silent() if json else ProgressBar(errors),
        )
    else:
        if public_data is not None:
            raise ArgumentError("--public-data is for --on public; leave out one of the two")
        tuned = tune_privately(
            recipe,
            space,
            out=out,
            runs=runs,
            law=law,
            score=score.value,
            score_noise=score_noise,
            jobs=jobs,
            data_dir=data_dir,
            announce=None if json else partial(_announce, recipe, runs),
        )
    if json:
        print_json(tuned.as_json())
    else:
        _show(tuned)


def _announce(recipe: Recipe, runs: float) -> None:
    errors.print(
        f"searching under one budget, ε = {recipe.privacy.epsilon}: {runs:g} runs are expected. How"
        " many there are, how long that takes and how they do is part of what is protected, so"
        " nothing is shown until the best is released. Keep it to yourself if you watch",
        markup=False,
    )


def _show(tuned: Tuned) -> None:
    if tuned.tried:
        screen.print(_table(tuned))
    chosen = ", ".join(f"{key} = {value}" for key, value in tuned.settings.items())
    screen.print(f"chosen      {chosen}", markup=False)
    result = tuned.result
    screen.print(f"tuning      {result.certificate['tuning']}", markup=False)
    show_run(result.certificate, result.metrics, result.path)


def _table(tuned: Tuned) -> Table:
    """Every trial, the best first."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold underline")
    right: JustifyMethod = "right"
    table.add_column("trial", justify=right)
    for key in tuned.settings:
        table.add_column(key.partition(".")[2], justify=right)
    table.add_column("accuracy on public records", justify=right)
    ranked = sorted(enumerate(tuned.tried, 1), key=lambda item: -(item[1][1] or 0.0))
    for number, (settings, accuracy) in ranked:
        shown = "" if accuracy is None else values.percent(accuracy)
        chosen = "bold" if settings == tuned.settings else None
        cells = [str(settings[key]) for key in tuned.settings]
        table.add_row(str(number), *cells, shown, style=chosen)
    return table
