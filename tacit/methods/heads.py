"""Heads that are computed from sums over the vectors of each class, instead of trained.

Vectors released one by one carry much more noise than signal. A head that is trained on them learns
what is true of noised vectors: next to nothing but how frequent each class is. Evaluation is
without noise, where the class with the nearest mean is the better answer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.errors import ModelError
from tacit.models.sanitization import Split

_SHARPNESS = 8.0
"""Scores in units of the squared radius of the vectors' range, times this: classes at opposite ends
of it are told apart for certain, and gradients below the head do not vanish before that."""


def linear_head(split: Split) -> nn.Linear:
    """The head of a network whose head is to be computed."""
    head = split.head[0]
    if len(split.head) != 1 or not isinstance(head, nn.Linear) or head.bias is None:
        raise ModelError(
            "the head is computed from sums: it must be one nn.Linear with a bias after the"
            " sanitization layer; or set head = 'trained' with guarantee 'one-time' or 'joint'"
        )
    return head


def nearest_means(sums: Tensor, counts: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and bias of scores that are highest for the class with the nearest mean.

    `sums` is [elements, classes]; `variance` is that of the noise on each element of a class's sum,
    whose expected part in the squared length of the mean is taken off.
    """
    counts = counts.clamp_min(1)
    means = sums / counts
    lengths = (means**2).sum(0) - len(means) * variance / counts**2
    return means, -lengths / 2


class Prototypes:
    """The head that answers with the class whose mean over all released vectors is nearest.

    Guarantee: a function of released vectors, public labels and the network's first weights, so
    post-processing. `memory` travels with checkpoints. `guesses` counts for each class as many
    vectors as it says, made of the head's first weights; an encoder that is trained below needs
    them to have a direction before the released vectors give one.
    """

    def __init__(self, split: Split, memory: dict[str, Tensor], guesses: float = 0.0) -> None:
        self._split, self._memory, self._head = split, memory, linear_head(split)
        places = F.normalize(self._head.weight.detach()) * self._head.in_features**0.5
        guessed = split.layer.bounded(places * split.layer.threshold)
        classes = self._head.out_features
        memory["class_sums"] = guesses * guessed.double().T.contiguous()
        memory["class_counts"] = torch.full((classes,), guesses, dtype=torch.float64)
        memory["class_variance"] = torch.zeros(classes, dtype=torch.float64)
        if guesses:
            self._set()

    def take(self, vectors: Tensor, labels: Tensor) -> None:
        """Count vectors that were released under the layer's present noise."""
        one_hot = F.one_hot(labels.long(), self._head.out_features).double()
        counts = one_hot.sum(0)
        self._memory["class_sums"] += vectors.double().T @ one_hot
        self._memory["class_counts"] += counts
        self._memory["class_variance"] += counts * self._split.layer.variance(vectors.shape[1])
        self._set()

    def _set(self) -> None:
        kept = (self._memory[f"class_{key}"] for key in ("sums", "counts", "variance"))
        weights, bias = nearest_means(*kept)
        scale = _SHARPNESS / self._split.layer.radius(len(weights)) ** 2
        with torch.no_grad():
            self._head.weight.copy_(scale * weights.T)
            self._head.bias.copy_(scale * bias)
