"""Whether records are independent: no record's loss or gradient depends on another record."""

from tacit.independence.guard import (
    Independence,
    IndependenceGuard,
    Tier,
    independence_of,
    weakest_of,
)

__all__ = ["Independence", "IndependenceGuard", "Tier", "independence_of", "weakest_of"]
