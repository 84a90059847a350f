"""Forward passes must not write to trained weights: only private gradients may move them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from tacit.errors import ModelError
from tacit.fixed_state import same_bits


@contextmanager
def weights_unwritten(weights: Sequence[Tensor], *, exact: bool) -> Iterator[None]:
    """Raise ModelError if the block writes to one of the weights.

    Guarantee: with `exact` the weights have the same bits before and after. Without, no operation
    of torch wrote to them, unless through `.data` or memory shared with another library; that
    costs nothing, a copy does. The initial bits are put back only where they are known.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> with torch.no_grad(), weights_unwritten([weight], exact=False):
    ...     weight.add_(1.0)
    Traceback (most recent call last):
    tacit.errors.ModelError: a trained parameter of shape (2,) was written to by a forward pass: ...
    """
    if not exact:
        before = [(weight._version, weight.data_ptr()) for weight in weights]
        yield
        for weight, state in zip(weights, before, strict=True):
            if (weight._version, weight.data_ptr()) != state:
                _refuse(weight)
        return
    copies = [weight.detach().clone() for weight in weights]
    yield
    for weight, copy in zip(weights, copies, strict=True):
        if not same_bits(weight, copy):
            with torch.no_grad():
                weight.copy_(copy)
            _refuse(weight)


def _refuse(weight: Tensor) -> None:
    raise ModelError(
        f"a trained parameter of shape {tuple(weight.shape)} was written to by a forward pass: it"
        " would carry values of private records without noise. Change weights by their gradients"
        " only, and keep nothing of a batch in the model"
    )
