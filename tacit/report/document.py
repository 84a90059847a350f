"""The frame of every page: one file that loads nothing, written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from importlib import resources
from pathlib import Path

from tacit.errors import RunError
from tacit.report.markup import escape

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


def document(title: str, header: str, body: str, footer: str, script: str = "") -> str:
    """A whole page; a script is the only one the page lets the browser run."""
    style = packaged("style.css")
    policy, tail = _POLICY, ""
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        tail = f"<script>{script}</script>\n"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
{header}
<main>
{body}
</main>
{footer}
{tail}</body>
</html>
"""


def packaged(name: str) -> str:
    """A text file that lies beside this module."""
    return resources.files("tacit.report").joinpath(name).read_text(encoding="utf-8")


def write_whole(target: Path, text: str) -> None:
    """Put the text at its place in one move, so that nobody reads half of it."""
    draft = target.with_name(f".{target.stem}-{secrets.token_hex(8)}.tmp")
    try:
        try:
            with draft.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"cannot write {str(target)!r} ({reason}); "
            "make its directory writable and free some space, or write elsewhere"
        ) from error
