"""Forward passes must not write to trained weights: only private gradients may move them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from tacit.errors import ModelError
from tacit.fixed_state import same_bits


@contextmanager
def weights_unwritten(weights: Sequence[Tensor]) -> Iterator[None]:
    """Raise ModelError if the block leaves one of the weights with other bits than before.

    Guarantee: after the block, however it ends, all weights have the bits they had before it.
    Version counters are not enough: writes through `.data` or NumPy do not move them.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> with weights_unwritten([weight]):
    ...     _ = weight.data.add_(1.0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tacit.errors.ModelError: a trained parameter of shape (2,) was written to by a forward pass: ...
    >>> weight.tolist()
    [0.0, 0.0]
    """
    copies = [weight.detach().clone() for weight in weights]
    written: list[Tensor] = []
    try:
        yield
    finally:
        for weight, copy in zip(weights, copies, strict=True):
            if not same_bits(weight, copy):
                written.append(weight)
                weight.data = copy
    if written:
        raise ModelError(
            f"a trained parameter of shape {tuple(written[0].shape)} was written to by a forward"
            " pass: it would carry values of private records without noise. Change weights by their"
            " gradients only, and keep nothing of a batch in the model"
        )
