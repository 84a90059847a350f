"""`tacit plan METHOD`: solve for the one value that is left out, and say what it will cost."""

from __future__ import annotations

import typer

from tacit.commands.plan_batch_clipping import batch_clipping
from tacit.commands.plan_dpftrl import dpftrl
from tacit.commands.plan_dpsgd import dpsgd
from tacit.commands.plan_sanitization import sanitization
from tacit.commands.plan_selective import selective_update

app = typer.Typer(help="Solve for ε, noise, epochs, batch size or records.", no_args_is_help=True)
app.command("dpsgd")(dpsgd)
app.command("dpftrl")(dpftrl)
app.command("batch-clipping")(batch_clipping)
app.command("sanitization")(sanitization)
app.command("dpsur")(selective_update)
app.command("dpsgd-br")(selective_update)
