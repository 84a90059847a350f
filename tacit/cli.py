"""The `tacit` command: thin, over the same functions as the Python API."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from tacit.commands import account, audit, compare, data, papers, plan, sanitize, train, tune
from tacit.commands.many import ManyValues
from tacit.commands.output import failed
from tacit.errors import TacitError
from tacit.process_tuning import tune_process

INTERRUPTED = 130

app = typer.Typer(
    name="tacit",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich's tables cut long option names on a narrow screen
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("tacit"))
        raise typer.Exit


@app.callback()
def common(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it and end.")
    ] = False,
) -> None:
    """Train neural networks under differential privacy, with a promise you can check."""


app.command("train")(train.train)
app.command("sanitize")(sanitize.sanitize)
app.add_typer(plan.app, name="plan")
app.command("account")(account.account)
app.command("report")(account.report)
app.command("compare", cls=ManyValues)(compare.compare)
app.command("audit")(audit.audit)
app.command("tune")(tune.tune)
app.add_typer(papers.app, name="papers")
app.add_typer(data.app, name="data")


_GOES_ON = (["compare"], ["audit"], ["tune"], ["papers"])
"""Commands that go on where they stopped when they are given again."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: errors made on purpose are printed without a traceback.

    Exit codes: 0 fine, 2 a wrong argument, 3 data, 4 model, 5 no proof, 6 run directory,
    7 ledger broken, 8 budget spent, 9 an audit shows more than is proven, 130 interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    tune_process()
    try:
        app(args=given, standalone_mode=True)
    except TacitError as error:
        failed(str(error), error.exit_code, as_json="--json" in given)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != INTERRUPTED:
            raise
        way = "the same command" if given[:1] in _GOES_ON else "--resume"
        failed(f"interrupted; continue with {way}", INTERRUPTED, as_json="--json" in given)
        sys.exit(INTERRUPTED)
