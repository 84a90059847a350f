"""`tacit train`: from data or a recipe to a certified model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tacit.commands.output import AsJson, errors, print_json, screen
from tacit.errors import ArgumentError
from tacit.report import values


def train(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA|RECIPE.toml",
            help="A dataset by name, a file or folder of your own, or a recipe.",
        ),
    ] = None,
    method: Annotated[str | None, typer.Option(help="dpsgd, dpftrl, batch-clipping, …")] = None,
    model: Annotated[str | None, typer.Option(help="A network by name.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The budget: ε proven at most.")] = None,
    delta: Annotated[float | None, typer.Option(help="δ, well below 1/records.")] = None,
    noise: Annotated[float | None, typer.Option(help="Noise multiplier instead of ε.")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest norm of a gradient.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Expected passes over the data.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Expected records per step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Size of a step.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Fix all randomness: for experiments, never for release.")
    ] = None,
    deterministic: Annotated[
        bool | None,
        typer.Option(
            "--deterministic/--timed",
            help="Choose algorithms by a fixed rule, so that a resumed run repeats its bits, or by"
            " timing them.",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any recipe value, such as run.seed=1."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory to make.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets lie.")] = None,
    json: AsJson = False,
) -> None:
    """Train a model under a privacy budget; ends with a certificate and an HTML report."""
    named = {
        "method.name": method,
        "model.name": model,
        "privacy.epsilon": epsilon,
        "privacy.delta": delta,
        "privacy.noise": noise,
        "method.clip": clip,
        "training.epochs": epochs,
        "training.batch_size": batch_size,
        "training.learning_rate": learning_rate,
        "run.seed": seed,
        "run.deterministic": None if deterministic is None else str(deterministic).lower(),
    }
    overrides = {key: str(value) for key, value in named.items() if value is not None}
    overrides |= changes_from(changes or [])
    if resume:
        if out is None:
            raise ArgumentError("--resume needs --out: the directory of the run to continue")
        if what or overrides:
            raise ArgumentError(
                "--resume continues a run as it was started: give --out alone, without data,"
                " recipe or settings"
            )
    elif what is None:
        raise ArgumentError("nothing to train: name a dataset or a recipe, such as digits")

    from tacit.progress import ProgressBar, Silent
    from tacit.train import recipe_for, stored_recipe
    from tacit.train import train as run_recipe

    recipe = stored_recipe(out) if resume and out else recipe_for(str(what), overrides)
    watcher = Silent() if json else ProgressBar(errors)
    result = run_recipe(recipe, data_dir=data_dir, out=out, resume=resume, watcher=watcher)
    if json:
        print_json(
            {"run": str(result.path), "certificate": result.certificate, "metrics": result.metrics}
        )
        return
    show_run(result.certificate, result.metrics, result.path)


def changes_from(texts: list[str], option: str = "--set") -> dict[str, str]:
    """Recipe values by dotted key, from --set key=value."""
    pairs = [text.partition("=") for text in texts]
    for text, (key, equals, _) in zip(texts, pairs, strict=True):
        if not equals or not key:
            raise ArgumentError(
                f"{option} {text}: write it as key=value, such as privacy.delta=1e-6"
            )
    return {key.strip(): value.strip() for key, _, value in pairs}


def show_run(certificate: dict[str, Any], metrics: dict[str, Any], path: Path) -> None:
    """What a finished run promises and how well it does."""
    table = Table(title=certificate["title"], show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    final, claimed, proven = metrics["final"], certificate["claimed"], certificate["proven"]
    if final:
        table.add_row(
            "accuracy", f"{values.percent(final['accuracy'])} on {metrics['evaluated_on']}"
        )
    each = [f"{values.proven(epsilon)} ({name})" for name, epsilon in proven.items()]
    table.add_row("ε proven", ", ".join(each) or "none: nothing is guaranteed")
    table.add_row("ε claimed", values.claimed(claimed["epsilon"]) if claimed else "no claim")
    table.add_row("ε audited", "not audited yet")
    noise = certificate.get("noise_multiplier")
    steps = certificate["steps" if "expected_runs" in certificate else "charges"]
    table.add_row("steps", f"{steps:,}" + (f", noise {noise:g}" if noise else ""))
    table.add_row("time", f"up to {values.duration(metrics['training_seconds'])}")
    screen.print(table)
    screen.print(certificate["verdict"], style="green" if proven else "red")
    for warning in certificate["warnings"]:
        screen.print(f"warning: {warning}", style="yellow")
    labels = ["weights.safetensors", "certificate.txt", "report.html"]
    for label in labels if proven else labels[::2]:
        screen.print(f"{label.partition('.')[0]:<12}{path / label}", soft_wrap=True)
