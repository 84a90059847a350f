"""Two recipes against each other, in words that follow from their runs."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Literal

from scipy.stats import ttest_ind

from accuracy_suite.stored import Summary
from tacit.report import values

Verdict = Literal["higher", "lower", "not told apart", "one run", "not measured"]
_CLAIM: dict[Verdict, str] = {
    "higher": "holds here",
    "lower": "is turned round here",
    "not told apart": "is neither shown nor refuted here",
    "one run": "is not decided by one run",
    "not measured": "is not measured here",
}


@dataclass(frozen=True)
class Versus:
    """The first recipe's accuracy beside the second's.

    The verdict is by Welch's 95 % interval of the difference of means. Runs of a recipe that has
    changed since do not count.
    """

    first: Summary | None
    second: Summary | None

    @property
    def pair(self) -> tuple[Summary, Summary] | None:
        """Both, where both were measured as they are today."""
        if self.first is None or self.second is None:
            return None
        current = self.first.current and self.second.current
        return (self.first, self.second) if current else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Bounds on the difference of means in percentage points; None with a single run."""
        if self.pair is None or min(one.seeds for one in self.pair) < 2:
            return None
        a, b = (one.accuracies for one in self.pair)
        if statistics.pstdev(a) == statistics.pstdev(b) == 0:
            return (a[0] - b[0],) * 2
        found = ttest_ind(a, b, equal_var=False).confidence_interval()
        return float(found.low), float(found.high)

    @property
    def verdict(self) -> Verdict:
        """What the runs say of the first."""
        if self.pair is None:
            return "not measured"
        if self.interval is None:
            return "one run"
        low, high = self.interval
        return "higher" if low > 0 else "lower" if high < 0 else "not told apart"

    def claim(self) -> str:
        """What becomes of the claim that the first is better."""
        return _CLAIM[self.verdict]

    def text(self) -> str:
        """Both accuracies, the verdict, and the ε they were measured at."""
        if self.pair is None:
            return "not measured"
        first, second = self.pair
        said = f"{first.scored} against {second.scored}"
        if self.interval is None:
            return f"{said} ({_epsilons(first, second)}), too few runs for a verdict"
        low, high = self.interval
        return (
            f"{said} ({_epsilons(first, second)}): **{self.verdict}**, difference"
            f" {_signed(first.accuracy - second.accuracy)}, interval {_signed(low)} to"
            f" {_signed(high)}"
        )


def _signed(points: float) -> str:
    return f"{points:+.2f}".replace("-", "−")


def _epsilons(first: Summary, second: Summary) -> str:
    a, b = (math.inf if one.proven is None else one.proven for one in (first, second))
    if math.isinf(a) and math.isinf(b):
        return "no proven ε"
    if math.isclose(a, b, rel_tol=1e-3):
        return f"both at proven ε = {values.proven(max(a, b))}"
    return f"proven ε {values.proven(a)} and {values.proven(b)}, **not equal**"
