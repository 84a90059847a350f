"""Evaluation on public records: accuracy, loss and the confusion matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tacit.clipping.contract import LossFunction
from tacit.data.batches import Records

_ROWS = 2048


@dataclass(frozen=True)
class Evaluation:
    """How well a model does on records that are not protected.

    Accuracy and confusion are None where labels do not name one of the model's outputs.
    """

    accuracy: float | None
    loss: float
    confusion: list[list[int]] | None


def evaluate(model: nn.Module, records: Records, loss: LossFunction) -> Evaluation:
    """Accuracy is the share of rows whose largest output is their label."""
    model.eval()
    total_loss, counts = 0.0, None
    with torch.no_grad():
        for start in range(0, len(records), _ROWS):
            batch = records.batch(torch.arange(start, min(start + _ROWS, len(records))))
            outputs = model(batch[0])
            total_loss += float(loss(_Known(outputs), batch).sum())
            here = _confusion(outputs, batch[-1])
            counts = here if counts is None or here is None else counts + here
    mean_loss = total_loss / len(records)
    if counts is None:
        return Evaluation(None, mean_loss, None)
    return Evaluation(float(counts.trace()) / len(records), mean_loss, counts.tolist())


def _confusion(outputs: Tensor, labels: Tensor) -> Tensor | None:
    """How often each class (row) was taken for each (column)."""
    if labels.is_floating_point() or labels.dim() != 1 or outputs.dim() != 2:
        return None
    classes = outputs.shape[1]
    if bool((labels < 0).any()) or bool((labels >= classes).any()):
        return None
    pairs = labels.long() * classes + outputs.argmax(1)
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes)


class _Known(nn.Module):
    """A model whose outputs are known already, so that a loss function needs no second pass."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self._outputs = outputs

    def forward(self, *_: object) -> Tensor:
        return self._outputs
