"""Options that the plans of several methods share, so that they read the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from tacit.privacy.relations import Relation

Records = Annotated[int, typer.Option(help="Training records.")]
BatchSize = Annotated[int, typer.Option(help="Records per batch.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the data.")]
Steps = Annotated[int | None, typer.Option(help="Steps, instead of epochs.")]
Noise = Annotated[float | None, typer.Option(help="Noise multiplier, in units of the clip norm.")]
Epsilon = Annotated[float | None, typer.Option(help="ε proven at most.")]
Delta = Annotated[float, typer.Option(help="δ, well below 1/records.")]
OfRelation = Annotated[Relation, typer.Option(help="The relation that --epsilon is meant for.")]
Model = Annotated[str | None, typer.Option(help="Forecast time and memory for it.")]
Data = Annotated[str | None, typer.Option(help="Shape of the records by dataset.")]
Shape = Annotated[str | None, typer.Option(help="Shape of a record: 1,28,28.")]
Classes = Annotated[int, typer.Option(help="Classes, with --shape.")]
