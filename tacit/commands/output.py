"""Printing for people and, with --json, for programs."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import typer
from rich.console import Console

screen = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def print_json(values: Any) -> None:
    """One JSON document on standard output; infinities become null."""
    print(json.dumps(_finite(values), indent=1, ensure_ascii=False))


def failed(message: str, code: int, *, as_json: bool) -> None:
    """An error, for people or for programs."""
    if as_json:
        print_json({"error": message, "exit_code": code})
    else:
        errors.print(f"[bold red]error[/bold red] {_escaped(message)}", soft_wrap=True)


def _escaped(message: str) -> str:
    return message.replace("[", "\\[")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
