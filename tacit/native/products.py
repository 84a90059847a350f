"""Gradients of linear layers as the compiled kernels take them, all of a model's at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tacit.native import structures

_PLAIN = (Tensor, nn.Parameter)
"""Types whose memory is where they say."""


@dataclass
class Product:
    """Record r's gradient of `total` is g[r] ⊗ x[r], that of `shift` is g[r]; either may be absent.

    Their sums are written there, or added to what is to be kept. The norms of both are part of the
    same group's.
    """

    g: Tensor
    group: int
    x: Tensor | None = None
    total: Tensor | None = None
    kept: bool = False
    shift: Tensor | None = None
    shift_kept: bool = False

    def described(self, records: int, groups: int) -> structures.Outer:
        """Addresses and sizes, checked: anything else would be read or written elsewhere."""
        x, g, total, shift = self.x, self.g, self.total, self.shift
        rows, outputs = g.shape
        assert readable(g) and rows == records and 0 <= self.group < groups
        inputs = stride = 0
        if x is not None:
            (rows, inputs), stride = x.shape, x.stride(0)
            assert readable(x) and rows == records
            assert total is not None and total.shape == (outputs, inputs) and _writable(total)
        assert shift is None or (shift.shape == (outputs,) and _writable(shift))
        return structures.Outer(
            None if x is None else x.data_ptr(),
            g.data_ptr(),
            None if total is None else total.data_ptr(),
            None if shift is None else shift.data_ptr(),
            *(inputs, outputs, stride, g.stride(0)),
            *(self.group, self.kept, self.shift_kept),
        )


class Products:
    """Several of them for the same records, their memory held for as long as this is."""

    def __init__(self, products: Sequence[Product], records: int, groups: int) -> None:
        self._products = products
        self.records, self.groups = records, groups
        described = (product.described(records, groups) for product in products)
        self.described = (structures.Outer * len(products))(*described)


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


def _writable(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.dtype == torch.float32 and tensor.is_cpu
