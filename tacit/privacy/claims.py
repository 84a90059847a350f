"""What the papers say a run costs, by their own arithmetic, right or wrong.

These numbers are shown as "as the paper computes it" and are never used as a guarantee.
"""

from __future__ import annotations

from dataclasses import dataclass

from tacit.privacy import accountants, events


@dataclass(frozen=True)
class Claim:
    """An ε with the name of the arithmetic it comes from."""

    epsilon: float
    source: str


def dpsgd(probability: float, noise: float, steps: int, delta: float) -> Claim:
    """Poisson accounting under add-or-remove-one, for whatever batching the paper ran.

    Mehta and Kumar (002) draw batches without replacement and account for Poisson sampling with
    a numerical accountant; their Tables I and II follow with 54,000 records.
    """
    step = events.poisson(probability, events.gaussian(noise))
    return Claim(
        accountants.epsilon(events.repeated(step, steps), delta),
        "paper 002, as the paper computes it: numerical composition for Poisson sampling,"
        " though its batches are drawn without replacement",
    )
