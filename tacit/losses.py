"""The default loss, and what is checked about a loss before the first record pays for it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping.contract import Batch, LossFunction
from tacit.data.batches import Records
from tacit.errors import DataError, ModelError
from tacit.models import validate


def cross_entropy(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """The default loss, one value per row."""
    return F.cross_entropy(model(batch[0]), batch[-1], reduction="none")


class LossCheck:
    """Checks each loss function once, before any step is charged for it.

    Refuses a loss that mixes records, unless whole mini-sets are clipped and it need not keep them
    `alone`, and for `cross_entropy` labels that name no output.
    """

    def __init__(self, model: nn.Module, records: Records, *, alone: bool = True) -> None:
        self._model = model
        self._records = records
        self._like = one_record(records)
        self._alone = alone
        self._checked: LossFunction | None = None

    def __call__(self, loss: LossFunction) -> None:
        if loss is self._checked:
            return
        check_labels(self._records, self._model, loss)
        if self._alone:
            validate.check_loss(self._model, loss, self._like)
        self._checked = loss


def one_record(records: Records) -> Batch:
    """One record, for shapes and types only: the checks make up their own values."""
    return records.batch(torch.zeros(1, dtype=torch.int64))


def check_labels(
    records: Records, model: nn.Module, loss: LossFunction, name: str = "train"
) -> None:
    """Every label must name an output of the model; only `cross_entropy` says what labels are."""
    if loss is not cross_entropy:
        return
    labels = records.labels
    if labels.is_floating_point() or labels.dtype == torch.bool or labels.dim() != 1:
        raise DataError(
            f"labels of {name} have type {labels.dtype} and {labels.dim()} dimensions; give one"
            " whole number per record, or a loss function of your own"
        )
    outputs = _outputs(model, one_record(records)[0])
    if int(labels.min()) < 0 or int(labels.max()) >= outputs:
        raise DataError(
            f"some labels of {name} lie outside 0…{outputs - 1}, though the model has {outputs}"
            " outputs; mend the labels or give the model more outputs"
        )


def _outputs(model: nn.Module, features: Tensor) -> int:
    """How many classes the model tells apart."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"model is a {type(model).__name__}; give a torch.nn.Module")
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            scores = model(torch.cat([features, features]))
    except (RuntimeError, ValueError, TypeError) as error:
        raise ModelError(
            f"the model does not take records of shape {tuple(features.shape[1:])}: {error}"
        ) from error
    finally:
        model.train(training)
    if not isinstance(scores, Tensor) or scores.dim() != 2:
        raise ModelError(
            "the model does not return one row of class scores per record; return a tensor of shape"
            " (records, classes), or give a loss function of your own"
        )
    return scores.shape[1]
