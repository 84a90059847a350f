"""δ(ε) and ε(δ) of a composed law that is tilted towards the losses in question."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from tacit.privacy.loss_points import ROUNDING, Array
from tacit.privacy.tilted import TiltedLaw


@dataclass(frozen=True)
class TiltedTail:
    """δ(ε) of a tilted law: Σ over ℓ > ε of (1 − e^(ε−ℓ))·e^(log_scale − tilt·ℓ)·mass."""

    tilt: float
    log_scale: float
    first: float
    step: float
    decaying: Array
    """Σ_{j ≥ i} e^(−tilt·(ℓ_j − ℓ_i))·mass_j."""
    steeper: Array
    """The same with tilt + 1."""
    error: float

    @classmethod
    def of(cls, law: TiltedLaw, tilt: float, step: float) -> TiltedTail:
        """Suffix sums of a tilted law on equally spaced losses."""
        unit = (int(law.index[1] - law.index[0]) if len(law.index) > 1 else 1) * step
        decaying, steeper = (_decaying(law.mass, t * unit) for t in (tilt, tilt + 1))
        error = math.expm1(law.slack) * math.exp(log_peak(tilt))
        return cls(tilt, law.log_scale, int(law.index[0]) * step, unit, decaying, steeper, error)

    def delta(self, epsilon: float) -> float:
        """An upper bound on δ(ε), infinite losses apart."""
        log_factor = self.log_scale - self.tilt * epsilon
        if log_factor > 700:
            return 1.0
        size = len(self.decaying)
        i = min(max(0, math.ceil((epsilon - self.first) / self.step)), size)
        found = self.error
        if i < size:
            gap = max(0.0, self.first + i * self.step - epsilon)
            flat = math.exp(-self.tilt * gap) * float(self.decaying[i])
            steep = math.exp(-(self.tilt + 1) * gap) * float(self.steeper[i])
            found += max(0.0, flat - steep) + 8 * ROUNDING * size * flat
        return min(1.0, math.exp(log_factor) * found)

    def epsilon(self, delta: float) -> float:
        """The smallest ε ≥ 0 whose bound on δ(ε) is at most `delta`, to all digits."""
        low, high = 0.0, 1.0
        if self.delta(low) <= delta:
            return 0.0
        while self.delta(high) > delta:
            low, high = high, 2 * high
        while low < (middle := (low + high) / 2) < high:
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high


def _decaying(mass: Array, rate: float) -> Array:
    """Σ_{j ≥ i} e^(−rate·(j − i))·mass_j."""
    return np.asarray(lfilter([1.0], [1.0, -math.exp(-rate)], mass[::-1])[::-1].copy())


def log_peak(tilt: float) -> float:
    """ln of the largest (1 − e^−x)·e^(−tilt·x), which bounds what one unit of mass adds to δ."""
    return -math.log1p(tilt) - tilt * math.log1p(1 / tilt)
