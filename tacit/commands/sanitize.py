"""`tacit sanitize`: release noised vectors instead of records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.commands.output import AsJson, print_json, screen
from tacit.commands.train import changes_from


def sanitize(
    what: Annotated[
        str, typer.Argument(metavar="DATA", help="A dataset by name, or a file or folder.")
    ],
    out: Annotated[Path, typer.Option(help="The directory to make.")],
    epsilon: Annotated[float | None, typer.Option(help="The budget: ε proven at most.")] = None,
    delta: Annotated[float | None, typer.Option(help="δ, well below 1/records.")] = None,
    noise: Annotated[float | None, typer.Option(help="Noise multiplier instead of ε.")] = None,
    clip: Annotated[float | None, typer.Option(help="C: radius, or largest element.")] = None,
    model: Annotated[str | None, typer.Option(help="The network whose encoder is used.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Fix all randomness: for experiments, never for release.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any recipe value."),
    ] = None,
    with_test: Annotated[
        bool, typer.Option("--with-test", help="Write your own test records too, without noise.")
    ] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets lie.")] = None,
    json: AsJson = False,
) -> None:
    """Release a dataset of noised vectors, one for every record, beside its public label."""
    named = {
        "privacy.epsilon": epsilon,
        "privacy.delta": delta,
        "privacy.noise": noise,
        "method.clip": clip,
        "model.name": model,
        "run.seed": seed,
    }
    overrides = {key: str(value) for key, value in named.items() if value is not None}
    if model is not None:
        overrides["method.encoder"] = "patches" if model == "patches" else "given"
    overrides |= changes_from(changes or [])

    from tacit.export import recipe_for
    from tacit.export import sanitize as release

    found = release(recipe_for(what, overrides), data_dir=data_dir, out=out, with_test=with_test)
    if json:
        print_json(
            {
                "run": str(found.path),
                "data": str(found.data),
                "records": found.records,
                "width": found.width,
                "certificate": found.certificate,
            }
        )
        return
    screen.print(f"{found.records:,} vectors of {found.width} elements: {found.data}")
    screen.print(found.certificate["verdict"], style="green")
    for warning in found.certificate["warnings"]:
        screen.print(f"warning: {warning}", style="yellow")
    screen.print(f"certificate: {found.path / 'certificate.txt'}", soft_wrap=True)
    screen.print("Whatever is trained on it is covered by this certificate, without more noise:")
    classes = f"--set data.options.classes={found.classes}"
    command = f"tacit train {found.data} --model linear --method plain {classes}"
    screen.print(f"train on it:  {command}", soft_wrap=True)
