"""What the papers say a run costs, by their own arithmetic, right or wrong.

These numbers are shown as "as the paper computes it" and are never used as a guarantee.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtri

from tacit.privacy import accountants, events, rdp, tradeoff
from tacit.privacy.relations import Relation

PAPER_002 = (
    "paper 002 (Implementation and Comparative Analysis of DP-SGD & DP-FTRL, Devansh Mehta"
    " and Roshan Kumar, IIT Kanpur), as the paper computes it"
)

PAPER_001 = (
    "paper 001 (Stabilizing updates in differentially private stochastic gradient descent with"
    " buffered rejection, Deng et al. 2026), as the paper computes it"
)

PAPER_003 = (
    "paper 003 (batch clipping and adaptive layerwise clipping for differentially private SGD),"
    " as the paper computes it"
)

PAPER_000 = (
    "paper 000 (An Adaptive Technique for Neural Network Training with Private Features and Public"
    " Labels, Monir, Fauzan, Ghinita and Abdallah), as the paper computes it"
)

_LARGE = 900.0


@dataclass(frozen=True)
class Claim:
    """An ε with the name of the arithmetic it comes from."""

    epsilon: float
    source: str
    mu: float | None = None
    """Where the paper claims a Gaussian trade-off function G_μ."""
    relation: Relation = Relation.ADD_OR_REMOVE_ONE
    """Against which change the paper claims to protect."""

    def as_json(self) -> dict[str, float | str]:
        """Plain values for the ledger."""
        values: dict[str, float | str] = {
            "epsilon": self.epsilon,
            "source": self.source,
            "relation": self.relation.value,
        }
        return values if self.mu is None else {**values, "mu": self.mu}

    def speaks_of(self, relation: Relation) -> bool:
        """Whether an attack on neighbours under `relation` can refute this claim."""
        return relation in _SPEAKS_OF[self.relation]


_PRESENT_OR_NOT = (Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT)
_SPEAKS_OF = {
    Relation.ADD_OR_REMOVE_ONE: _PRESENT_OR_NOT,
    Relation.ZERO_OUT: _PRESENT_OR_NOT,
    Relation.REPLACE_ONE: (Relation.REPLACE_ONE, Relation.REPLACE_FEATURES),
    Relation.REPLACE_FEATURES: (Relation.REPLACE_FEATURES,),
}


def dpsgd(probability: float, noise: float, steps: int, delta: float) -> Claim:
    """Poisson accounting under add-or-remove-one, for whatever batching the paper ran.

    Mehta and Kumar (002) draw batches without replacement and account for Poisson sampling with
    a numerical accountant; their Tables I and II follow with 54,000 records.
    """
    step = events.poisson(probability, events.gaussian(noise))
    return Claim(
        accountants.epsilon(events.repeated(step, steps), delta),
        f"{PAPER_002}: numerical composition for Poisson sampling, though the paper's batches"
        " are drawn without replacement",
    )


def sanitization(probability: float, noise: float, steps: int, delta: float) -> Claim:
    """The moments accountant of the Poisson-sampled Gaussian, as if sampling hid the records.

    Monir et al. (000) charge each batch so; their Tables 2 to 4 follow. The release is one noised
    vector for every record of a batch, and the layers below it are trained without noise.
    """
    step = events.poisson(probability, events.gaussian(noise))
    found = accountants.epsilon(
        events.repeated(step, steps), delta, accountant=accountants.Accountant.RDP
    )
    return Claim(
        found,
        f"{PAPER_000}: moments of the Poisson-sampled Gaussian, though every noised vector shows"
        " that its record took part",
        relation=Relation.REPLACE_FEATURES,
    )


_ORDERS = [1 + tenth / 10 for tenth in range(1, 100)] + [float(order) for order in range(12, 64)]


def dpftrl(sensitivity_squared: float, noise: float, delta: float) -> Claim:
    """Steps 1 to 4 of paper 002, section IV: α/(2σ²) at σ = noise/√S, at the best order α.

    The orders are those of the library that the paper uses; with them its Table III follows.
    """
    effective = noise / math.sqrt(sensitivity_squared)

    def converted(order: float) -> float:
        scale = math.log(delta * (order - 1)) - order * math.log1p(-1 / order)
        return order / (2 * effective**2) - scale / (order - 1)

    return Claim(
        max(0.0, min(map(converted, _ORDERS))),
        f"{PAPER_002}: Rényi divergence of the tree's nodes, converted at the best order",
    )


def batch_clipping(
    records: int, batch_size: int, epochs: float, sigma: float, delta: float
) -> Claim | None:
    """G_μ by the central limit theorem, μ = √2·√(E·m/N)·h(σ̄) (003, B.1), converted at δ.

    `sigma` is the multiplier of the whole release, σ/√L for L layers clipped apart. The paper
    computes this for every sampling, also where its batches are drawn once per epoch. For large μ
    the conversion is that of its limit; None where h is too large for any number.
    """
    limit = tradeoff.central_limit(batch_size / records, epochs * records / batch_size, sigma)
    if math.isinf(limit.mu):
        return None
    beyond = limit.mu**2 / 2 - limit.mu * float(ndtri(delta))
    return Claim(
        limit.epsilon(delta) if limit.mu < _LARGE else beyond,
        f"{PAPER_003}: the central limit approximation of C(G) composed over the rounds",
        limit.mu,
        Relation.REPLACE_ONE,
    )


SELECTIVE_ORDERS = tuple(float(order) for order in (*range(2, 65), 80, 96, 128, 192, 256))


@lru_cache(maxsize=1024)
def selective_update(
    probability: float, noise: float, test_probability: float, test_noise: float
) -> rdp.Array:
    """Eqs. 22 and 23 of paper 001 for one applied update, at `SELECTIVE_ORDERS`."""
    gradient = rdp.poisson_gaussian(probability, noise, SELECTIVE_ORDERS)
    return gradient + rdp.poisson_gaussian(test_probability, test_noise, SELECTIVE_ORDERS)


def selective(divergences: rdp.Array, delta: float) -> Claim:
    """Eq. 25 of paper 001 at its best order, for the applied updates' divergences together.

    The paper multiplies one update's by their number, which means nothing once the noise decays;
    they are added up here. It charges neither rejected candidates nor the choice among them.
    """
    orders = np.array(SELECTIVE_ORDERS)
    converted = divergences + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    nothing = not divergences.any()
    return Claim(
        0.0 if nothing else max(0.0, float(converted.min())),
        f"{PAPER_001}: applied updates are charged, rejected candidates are not",
    )
