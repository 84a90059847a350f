"""What a model shows of each record, and the membership scores that attacks make of it.

`seen[record]` of the target is compared with what shadow models show of the same record: models
trained by the same recipe on records whose membership is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from tacit.audit.scores import Array, Coins

_GAMMA = 2.0  # RMIA: by how much a record must stand out from another one
_COMPARED = 1000  # RMIA: records that each record is compared with
_OWN_SPREAD = 32  # LiRA: from so many models on each record has a variance of its own


@dataclass(frozen=True)
class Signals:
    """What one model shows of all records of a pool."""

    logits: NDArray[np.float32]
    gradients: NDArray[np.float32]
    """Norms of the gradient in the last layers, one column for each tensor."""
    labels: NDArray[np.int64]

    @property
    def log_probability(self) -> Array:
        """ln p of the true class."""
        rows = np.arange(len(self.labels))
        return np.asarray(log_softmax(self.logits.astype(np.float64), axis=1)[rows, self.labels])

    @property
    def margin(self) -> Array:
        """ln p/(1 − p) of the true class, which is close to normal (Carlini et al. 2022)."""
        others = self.logits.astype(np.float64).copy()
        rows = np.arange(len(self.labels))
        true = others[rows, self.labels]
        others[rows, self.labels] = -np.inf
        return np.asarray(true - logsumexp(others, axis=1))

    def outputs(self) -> Array:
        """Features for a classifier that sees outputs only."""
        logs = log_softmax(self.logits.astype(np.float64), axis=1)
        best = -np.sort(-logs, axis=1)[:, :3]
        return np.column_stack((best, self.log_probability, self.margin))

    def inside(self) -> Array:
        """Features for a classifier that sees gradients of the last layers too."""
        return np.column_stack((self.outputs(), np.log(self.gradients + 1e-12)))


@dataclass(frozen=True)
class Shadows:
    """Shadow models with their members."""

    signals: tuple[Signals, ...]
    members: tuple[Coins, ...]

    def margins(self) -> tuple[Array, NDArray[np.bool_]]:
        """Margins and memberships, one row for each model."""
        return np.stack([one.margin for one in self.signals]), np.stack(self.members)


Score = Callable[[Signals, Shadows], Array]


def loss_threshold(target: Signals, _: Shadows) -> Array:
    """Members have a small loss (Yeom et al. 2018); needs no shadow models."""
    return target.log_probability


def shadow_classifier(target: Signals, shadows: Shadows) -> Array:
    """A classifier of outputs, taught by shadow models (Shokri et al. 2017; paper 001)."""
    return _classified(target.outputs(), [one.outputs() for one in shadows.signals], shadows)


def partial_gradients(target: Signals, shadows: Shadows) -> Array:
    """The same with gradients of the last layers (Nasr et al. 2019; paper 001): white-box."""
    return _classified(target.inside(), [one.inside() for one in shadows.signals], shadows)


def _classified(target: Array, known: list[Array], shadows: Shadows) -> Array:
    from sklearn.ensemble import HistGradientBoostingClassifier

    classifier = HistGradientBoostingClassifier(
        max_iter=60, max_leaf_nodes=8, learning_rate=0.1, random_state=0, early_stopping=False
    )
    classifier.fit(np.concatenate(known), np.concatenate(shadows.members))
    return np.asarray(classifier.decision_function(target), dtype=np.float64)


def lira_offline(target: Signals, shadows: Shadows) -> Array:
    """How far the margin lies above that of models that did not see the record."""
    margins, members = shadows.margins()
    mean, spread = _normal(margins, ~members)
    return np.asarray((target.margin - mean) / spread)


def lira_online(target: Signals, shadows: Shadows) -> Array:
    """Likelihood ratio of models that saw the record to those that did not."""
    margins, members = shadows.margins()
    seen, seen_spread = _normal(margins, members)
    unseen, unseen_spread = _normal(margins, ~members)
    inside = -(((target.margin - seen) / seen_spread) ** 2) / 2 - np.log(seen_spread)
    outside = -(((target.margin - unseen) / unseen_spread) ** 2) / 2 - np.log(unseen_spread)
    return np.asarray(inside - outside)


def _normal(margins: Array, mask: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Mean of each record over the models in the mask, and a spread: one for all records where
    models are few (Carlini et al. 2022)."""
    counts = mask.sum(axis=0)
    overall = float(margins[mask].mean())
    total = np.where(mask, margins, 0.0).sum(axis=0)
    mean = np.where(counts > 0, total / np.maximum(counts, 1), overall)
    squares = np.where(mask, (margins - mean) ** 2, 0.0).sum(axis=0)
    if counts.min() >= _OWN_SPREAD:
        return mean, np.sqrt(squares / (counts - 1)) + 1e-6
    freedom = max(1.0, float(np.maximum(counts - 1, 0).sum()))
    return mean, np.full_like(mean, np.sqrt(squares.sum() / freedom) + 1e-6)


def rmia(target: Signals, shadows: Shadows) -> Array:
    """How many other records this one beats in p(target)/p(shadows) (Zarifzadeh et al. 2024)."""
    average = logsumexp([one.log_probability for one in shadows.signals], axis=0) - np.log(
        len(shadows.signals)
    )
    ratio = target.log_probability - average
    compared = np.sort(np.random.default_rng(0).permutation(ratio)[:_COMPARED])
    beaten = np.searchsorted(compared, ratio - np.log(_GAMMA), "right") / len(compared)
    return np.asarray(beaten + 1e-9 * ratio)


SCORES: dict[str, Score] = {
    "loss-threshold": loss_threshold,
    "shadow-models": shadow_classifier,
    "partial-gradients": partial_gradients,
    "lira-offline": lira_offline,
    "lira-online": lira_online,
    "rmia": rmia,
}
