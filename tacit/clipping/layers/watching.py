"""Calls that a forward pass may make at one step and not at another, and that change what holds.

Where records lie in a layer is found out once and remembered. That is enough as long as nothing
picks rows by their content: rows that were sorted, selected or put back by an index lie elsewhere
in every batch. Such calls are seen here, and after one of them nothing remembered is relied on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tacit.clipping.layers.axis import Rows

Moves = Callable[..., bool]
"""Called with the rows of the batch and then as the torch function itself."""


class UnreadableError(Exception):
    """A forward pass or its graph holds something that only interception can judge."""


class Watch(TorchFunctionMode):
    """Lets a forward pass run as it is, up to the first call that interception should see.

    `stopped` tells of one also where the model caught the error.
    """

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.stopped = False
        self._rows = rows

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        judge = _JUDGED.get(func)
        if (judge is not None and judge(*args, **kwargs)) or (
            func in _MOVERS and moves_rows(func, self._rows, args, kwargs)
        ):
            self.stopped = True
            raise UnreadableError
        return func(*args, **kwargs)


def moves_rows(
    func: Callable[..., Any], rows: Rows, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Whether a call may put rows of a batch to places that depend on their content."""
    moves = _MOVERS.get(func)
    if moves is None:
        return False
    try:
        return moves(rows, *args, **kwargs)
    except TypeError:  # called in a way that is not known here
        return True


def _always(*_: object, **__: object) -> bool:
    return True


def _rescales(
    input: Tensor,
    weight: Tensor,
    third: Any = None,
    max_norm: float | None = None,
    *_: Any,
    **__: Any,
) -> bool:
    """A table's rows, which `max_norm` would have rewritten where they are looked up."""
    return max_norm is not None


_JUDGED: Mapping[Callable[..., Any], Callable[..., bool]] = {
    F.batch_norm: _always,
    F.embedding: _rescales,
    F.embedding_bag: _rescales,
}
"""Functions whose rules may refuse the model, and whether this call gives them a reason."""


def _by_index(rows: Rows, tensor: Tensor, index: Any, *_: Any) -> bool:
    """`tensor[index]`, read or written: harmless unless tensors pick among the first dimension."""
    parts = index if isinstance(index, tuple) else (index,)
    if _holds_no_rows(tensor) or not any(isinstance(part, (Tensor, list)) for part in parts):
        return False
    first = parts[0]
    if isinstance(first, slice):
        return first != slice(None) or tensor.shape[0] != rows.count
    return not (isinstance(first, Tensor) and _counts(first, rows))


def _along(rows: Rows, input: Tensor, dim: int, *_: Any, **__: Any) -> bool:
    """Functions with a dimension, which they pick along by an index."""
    return _picks(rows, input, dim)


def _chosen_along(rows: Rows, input: Tensor, indices: Any, dim: int | None = None) -> bool:
    return dim is None or _picks(rows, input, dim)


def _sorted(rows: Rows, input: Tensor, dim: int = -1, *_: Any, **__: Any) -> bool:
    return _picks(rows, input, dim)


def _largest(rows: Rows, input: Tensor, k: int, dim: int = -1, *_: Any, **__: Any) -> bool:
    return _picks(rows, input, dim)


def _repeated(rows: Rows, input: Tensor, repeats: Any = None, *_: Any, **__: Any) -> bool:
    return isinstance(repeats, Tensor) and repeats.numel() > 1


def _flattened(rows: Rows, input: Tensor, *_: Any, **__: Any) -> bool:
    """Functions that pick among all elements."""
    return not _holds_no_rows(input)


def _looked_up(rows: Rows, input: Tensor, weight: Tensor, *_: Any, **__: Any) -> bool:
    """Rows of a table that is not one of parameters."""
    return weight.requires_grad and not _holds_no_rows(weight)


def _picks(rows: Rows, tensor: Tensor, dim: Any) -> bool:
    if not isinstance(dim, int) or not tensor.dim():
        return True
    return not _holds_no_rows(tensor) and (dim % tensor.dim() == 0 or tensor.shape[0] != rows.count)


def _holds_no_rows(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter)


def _counts(index: Tensor, rows: Rows) -> bool:
    """Whether an index is 0, 1, 2, …: each row stays where it is."""
    if index.dtype == torch.bool or index.shape[:1] != (rows.count,) or index.numel() != rows.count:
        return False
    with torch._C.DisableTorchFunction():
        numbers = torch.arange(rows.count, device=index.device, dtype=index.dtype)
        return torch.equal(index.flatten(), numbers)


def _methods(names: str, moves: Moves) -> dict[Callable[..., Any], Moves]:
    """The functions of these names, those of `torch` and the methods of tensors."""
    places = (torch, Tensor)
    return {
        getattr(place, name): moves
        for name in names.split()
        for place in places
        if hasattr(place, name)
    }


_MOVERS: Mapping[Callable[..., Any], Moves] = {
    Tensor.__getitem__: _by_index,
    Tensor.__setitem__: _by_index,
    **_methods("index_select gather scatter scatter_ scatter_add scatter_add_", _along),
    **_methods(
        "index_add index_add_ index_copy index_copy_ scatter_reduce scatter_reduce_", _along
    ),
    **_methods("take_along_dim", _chosen_along),
    **_methods("sort", _sorted),
    **_methods("topk", _largest),
    **_methods("repeat_interleave", _repeated),
    **_methods("take masked_select masked_scatter masked_scatter_", _flattened),
    **_methods("index_put index_put_ unique _pack_padded_sequence", _flattened),
    F.embedding: _looked_up,
}
