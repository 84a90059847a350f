"""What is known about the floating-point sums of a run: proven, or idealised."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

NumericsName = Literal["best", "proven"]

_PROVEN = (
    "gradients are clipped, truncated to a public grid and added up without rounding, so the"
    " sensitivity holds for the sums as they are computed. Every record has a public slot: in a"
    " neighbouring data set the slot is still there, and is drawn just the same, but is empty or"
    " holds another record (docs/proofs/sums.md)"
)
_IDEALISED = (
    "the sensitivity is that of sums in real numbers; rounding in floating point can make a"
    " computed sum move a little further when one record changes, and that is not accounted for"
)


@dataclass(frozen=True)
class Numerics:
    """Whether the sensitivity of sums is proven for the program that runs, or for real numbers.

    `reason` says why sums are not proven; `layers` names the layers whose sums are.
    """

    sums: Literal["proven", "idealised"]
    reason: str = ""
    layers: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Plain values for the ledger's first entry and the certificate."""
        if self.sums == "proven":
            return {"sums": "proven", "meaning": _PROVEN, "layers": list(self.layers)}
        return {"sums": "idealised", "meaning": _IDEALISED, "reason": self.reason}
