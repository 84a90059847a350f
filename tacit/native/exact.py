"""Calls of the compiled kernels that add up gradients of linear layers without rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tacit.native.calls import Calls
from tacit.native.products import Rows
from tacit.native.structures import numbers


class ExactProduct(NamedTuple):
    """Record r's gradient is g[r] ⊗ x[r] for `total`, and g[r] for `shift`; either may be absent.

    Groups are columns of norms and factors. A record's clipped gradient is at most 2^exponent long
    and is made of whole numbers of `bits` bits, `input_bits` of which are those of its inputs.
    """

    g: Rows
    x: Rows | None
    total: Tensor | None
    shift: Tensor | None
    group: int
    shift_group: int
    exponent: int
    shift_exponent: int
    bits: int
    input_bits: int


class ExactProducts:
    """Several of them for the same records, their memory held for as long as this is."""

    def __init__(self, products: Sequence[ExactProduct], groups: int) -> None:
        self.records, self.groups, self.count = products[0].g.records, groups, len(products)
        self.across = torch.zeros(len(products), self.records, dtype=torch.float64)
        """Squared norms of inputs."""
        self._held = products
        self.described = numbers(
            [n for at, product in enumerate(products) for n in self._described(product, at)]
        )

    def _described(self, product: ExactProduct, at: int) -> tuple[int, ...]:
        """Addresses and sizes, checked: anything else would be read or written elsewhere."""
        g, x, total, shift = product[:4]
        inputs = 0 if x is None else x.width
        assert g.records == self.records and (x is None or x.records == self.records)
        assert (x is None) == (total is None)
        assert 0 <= product.group < self.groups and 0 <= product.shift_group < self.groups
        assert total is None or _holds(total, (g.width, inputs))
        assert shift is None or _holds(shift, (g.width,))
        return (
            0 if x is None else x.tensor.data_ptr(),
            g.tensor.data_ptr(),
            0 if total is None else total.data_ptr(),
            0 if shift is None else shift.data_ptr(),
            self.across[at].data_ptr(),
            *(inputs, g.width, 0 if x is None else x.stride, g.stride),
            *product[4:],
        )


class Exact(Calls):
    """Sums of whole numbers, which do not depend on the order in which they are added up."""

    def exact_squares(self, products: ExactProducts) -> Tensor:
        """Squared norms of records' gradients in double precision, [records, groups]."""
        sizes = (products.records, products.groups)
        squares = torch.empty(sizes, dtype=torch.float64, device="cpu")
        described = products.described, products.count
        self._call("tacit_exact_squares", torch.get_num_threads(), *described, *sizes, squares)
        return squares

    def exact_sums(self, products: ExactProducts, factors: Tensor) -> None:
        """Add the sums of gradients, each times its group's factor and truncated to the grid."""
        sizes = (products.records, products.groups)
        assert _holds(factors, sizes)
        described = products.described, products.count
        self._call("tacit_exact_sums", torch.get_num_threads(), *described, *sizes, factors)

    def exact_table(self, tokens: Tensor, rows: Tensor, padding: int | None, total: Tensor) -> None:
        """Add row r to those rows of `total` that tokens[r] name, `padding` excepted."""
        records, positions = tokens.shape
        size, width = total.shape
        assert _holds(rows, (records, width)) and _holds(total, (size, width))
        assert not tokens.numel() or 0 <= int(tokens.min()) <= int(tokens.max()) < size
        tokens = tokens.to(torch.int64).contiguous()
        left_out = -1 if padding is None else padding
        sizes = records, positions, width, left_out
        self._call("tacit_exact_table", torch.get_num_threads(), *sizes, tokens, rows, total)


def _holds(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    whole = tensor.dtype == torch.float64 and tensor.is_contiguous() and tensor.is_cpu
    return whole and tensor.shape == shape
