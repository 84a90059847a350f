"""One self-contained page per run, made from its directory alone."""

from pathlib import Path


def write_report(run: Path) -> Path:
    """Write `run/report.html` and return its path; plotting is imported only when needed."""
    from tacit.report.page import write_report as write

    return write(run)


__all__ = ["write_report"]
