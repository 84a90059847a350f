"""The page that shows one run: what was proven, how well the model does, and how to repeat it."""

from __future__ import annotations

from tacit.report.page import write_report

__all__ = ["write_report"]
