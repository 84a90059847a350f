"""Gradients of linear layers as the compiled kernels take them, all of a model's at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tacit.native.structures import numbers

_PLAIN = (Tensor, nn.Parameter)
"""Types whose memory is where they say."""


class Rows(NamedTuple):
    """A tensor whose rows the kernels can read; made by `rows_of` alone.

    Where they lie is asked for when kernels are called: memory may be moved until then.
    """

    tensor: Tensor
    records: int
    width: int
    stride: int


class Product(NamedTuple):
    """Record r's gradient is g[r] ⊗ x[r], or also or only g[r]; either may be absent.

    Their sums are written to places of a vector, `at` and `shift_at`, or added to what is to be
    kept there. The norms of both are part of the same group's.
    """

    g: Rows
    group: int
    x: Rows | None = None
    at: int = 0
    kept: bool = False
    shift_at: int | None = None
    shift_kept: bool = False


class Products:
    """Several of them for the same records, their memory held for as long as this is.

    No two may have the same place in the vector that their sums go to.
    """

    def __init__(
        self, products: Sequence[Product], vector: Tensor, records: int, groups: int
    ) -> None:
        assert plain(vector) and vector.dim() == 1 and vector.is_contiguous()
        self._held = products, vector
        self.records, self.groups = records, groups
        self._end, self._address = vector.numel(), vector.data_ptr()
        self.count = len(products)
        self.described = numbers([n for product in products for n in self._described(*product)])

    def _described(
        self,
        g: Rows,
        group: int,
        x: Rows | None,
        at: int,
        kept: bool,
        shift_at: int | None,
        shift_kept: bool,
    ) -> tuple[int, ...]:
        """Addresses and sizes, checked: anything else would be read or written elsewhere."""
        assert g.records == self.records and 0 <= group < self.groups
        assert x is None or x.records == self.records
        inputs = 0 if x is None else x.width
        assert 0 <= at <= self._end - g.width * inputs
        assert shift_at is None or 0 <= shift_at <= self._end - g.width
        return (
            0 if x is None else x.tensor.data_ptr(),
            g.tensor.data_ptr(),
            self._address + 4 * at,
            0 if shift_at is None else self._address + 4 * shift_at,
            *(inputs, g.width, 0 if x is None else x.stride, g.stride),
            *(group, kept, shift_kept),
        )


def rows_of(tensor: Tensor) -> Rows | None:
    """The rows of a tensor, if the kernels can read them."""
    if not readable(tensor):
        return None
    records, width = tensor.shape
    return Rows(tensor, records, width, tensor.stride(0))


def readable(tensor: Tensor) -> bool:
    """Whether the kernels can read rows of a tensor."""
    return plain(tensor) and tensor.dim() == 2 and (tensor.stride(1) == 1 or tensor.shape[1] == 1)


def plain(tensor: Tensor) -> bool:
    """Whether a tensor's numbers are what is in its memory, in single precision."""
    return (
        type(tensor) in _PLAIN
        and tensor.dtype is torch.float32
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
    )
