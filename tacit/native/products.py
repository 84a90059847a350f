"""Gradients of linear layers as the compiled kernels take them, all of a model's at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.native import structures


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
        outputs, inputs, stride = self.g.shape[1], 0, 0
        assert readable(self.g) and len(self.g) == records and 0 <= self.group < groups
        if self.x is not None:
            inputs, stride = self.x.shape[1], self.x.stride(0)
            assert readable(self.x) and len(self.x) == records and self.total is not None
        for where, shape in ((self.total, (outputs, inputs)), (self.shift, (outputs,))):
            assert where is None or (where.shape == shape and where.is_contiguous())
            assert where is None or (where.dtype == torch.float32 and where.device.type == "cpu")
        return structures.Outer(
            *(_address(t) for t in (self.x, self.g, self.total, self.shift)),
            *(inputs, outputs, stride, self.g.stride(0)),
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
    return (
        tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        and tensor.dim() == 2
        and (tensor.stride(1) == 1 or tensor.shape[1] == 1)
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
