"""The default loss, and whether labels are such that it can be computed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping.contract import Batch, LossFunction
from tacit.data.batches import Records
from tacit.errors import DataError, ModelError


def cross_entropy(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """The default loss, one value per row."""
    return F.cross_entropy(model(batch[0]), batch[-1], reduction="none")


def blank_record(records: Records) -> Batch:
    """A blank record of the records' shapes and types.

    No private value is in it, so it may be shown to a model outside of steps: what a model keeps
    of it, for example as data-dependent initial values, is public.
    """
    return tuple(map(torch.zeros_like, records.batch(torch.zeros(1, dtype=torch.int64))))


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
    outputs = _outputs(model, blank_record(records)[0])
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
