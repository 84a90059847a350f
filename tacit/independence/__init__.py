"""Whether records are independent: no record's loss or gradient depends on another record."""

from tacit.independence.guard import IndependenceGuard
from tacit.independence.tiers import (
    Independence,
    Tier,
    check_resumed,
    independence_of,
    weakest_of,
)

__all__ = [
    "Independence",
    "IndependenceGuard",
    "Tier",
    "check_resumed",
    "independence_of",
    "weakest_of",
]
