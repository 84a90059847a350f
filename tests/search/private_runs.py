"""What tests of private searches share."""

from pathlib import Path
from typing import Any

from tacit.privacy import ledger

RECORDS, HELD = 300, 60
TRIED = {"training.learning_rate": "0.1,1,3", "method.clip": "0.5,1"}


def charges(out: Path) -> list[dict[str, Any]]:
    return [entry.body for entry in ledger.read(out / "ledger.jsonl") if entry.kind == "charge"]
