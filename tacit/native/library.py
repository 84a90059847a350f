"""Calls the compiled kernels with tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.native import structures
from tacit.native.affine import Affine
from tacit.native.calls import check, packed
from tacit.native.convolutions import Convolutions
from tacit.native.exact import Exact
from tacit.native.noise import Noise
from tacit.native.products import Products
from tacit.native.selections import Selections

_TAG_PIECE = 4 * 4096
TAG_KEY_WORDS = 4096 + 3 * 32


class Library(Affine, Convolutions, Exact, Noise, Selections):
    """The compiled kernels for one instruction set.

    As many threads work as torch uses, in torch's own OpenMP runtime.
    """

    def tags(self, content: Tensor, key: Tensor) -> bytes:
        """Sums that tell a tensor's bytes from others of as many: 32 bytes for each 16 KiB.

        Two contents that were chosen without knowing the key, `TAG_KEY_WORDS` uniform words, have
        the same sums with probability at most 2⁻¹²⁸ (docs/proofs/names.md). Neither instruction
        sets nor threads change a bit.
        """
        assert content.is_contiguous() and content.is_cpu
        assert not content.is_neg() and not content.is_conj()
        assert key.dtype == torch.int32 and key.shape == (TAG_KEY_WORDS,) and key.is_contiguous()
        size = content.numel() * content.element_size()
        sums = torch.empty(-(-size // _TAG_PIECE), 4, dtype=torch.int64, device="cpu")
        self._call("tacit_tags", torch.get_num_threads(), content, size, key, sums)
        return sums.numpy().tobytes()

    def outer_squares(self, products: Products) -> tuple[Tensor, bool]:
        """Squared norms of records' gradients, [records, groups], and whether all are finite."""
        sizes = (products.records, products.groups)
        squares = torch.empty(sizes, dtype=torch.float32, device="cpu")
        described = products.described, products.count
        finite = self._library.tacit_outer_squares(
            self._level, torch.get_num_threads(), *described, *sizes, squares.data_ptr()
        )
        return squares, bool(finite)

    def outer_sums(self, products: Products, factors: Tensor) -> None:
        """Sums of gradients over records, each times its group's factor, [records, groups]."""
        check(factors)
        sizes = (products.records, products.groups)
        assert factors.shape == sizes
        described = products.described, products.count
        self._library.tacit_outer_sums(
            self._level, torch.get_num_threads(), *described, *sizes, factors.data_ptr()
        )

    def group_norm(
        self, x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `torch.native_group_norm`, for images in channels-last format."""
        images, shape = len(x), _grouped(x, groups, eps)
        y = torch.empty_like(x)
        mean, rstd = x.new_empty(images, groups), x.new_empty(images, groups)
        self._call(
            *("tacit_group_norm", torch.get_num_threads(), shape, images, x),
            *(packed(weight), packed(bias), y, mean, rstd),
        )
        return y, mean, rstd

    def group_norm_backward(
        self,
        x: Tensor,
        g: Tensor,
        weight: Tensor | None,
        mean: Tensor,
        rstd: Tensor,
        input_needed: bool,
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """The images' gradient if needed, and every image's own scale and shift gradients."""
        images, shape = len(x), _grouped(x, mean.shape[1], 0.0)
        g = g.contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x) if input_needed else None
        scale, shift = (x.new_empty(images, x.shape[1]) for _ in range(2))
        self._call(
            *("tacit_group_norm_backward", torch.get_num_threads(), shape, images),
            *(x, g, packed(weight), mean, rstd, dx, scale, shift),
        )
        return dx, scale, shift

    def table_norms(self, tokens: Tensor, g: Tensor, size: int, padding: int) -> Tensor:
        """Squared norms of the gradients of a table of `size` rows, record by record.

        Record r adds g[r, p] to row tokens[r, p], unless that is the row `padding`.
        """
        shape, tokens = _lookups(tokens, g, padding)
        squares = g.new_empty(len(g))
        threads = torch.get_num_threads()
        self._call("tacit_table_norms", threads, shape, len(g), size, tokens, g, squares)
        return squares

    def table_sum(
        self, tokens: Tensor, g: Tensor, padding: int, factors: Tensor, total: Tensor
    ) -> None:
        """Add the sum of the same gradients, each times its record's factor, to `total`."""
        shape, tokens = _lookups(tokens, g, padding)
        factors = factors.contiguous()
        check(factors, total)
        threads = torch.get_num_threads()
        self._call("tacit_table_sum", threads, shape, len(g), tokens, g, factors, total)


def _lookups(tokens: Tensor, g: Tensor, padding: int) -> tuple[structures.Lookups, Tensor]:
    assert g.dtype == torch.float32 and tokens.shape == g.shape[:2]
    assert g.shape[2] == 1 or g.stride(2) == 1
    tokens = tokens.to(torch.int64).contiguous()
    return structures.Lookups(*g.shape[1:], g.stride(0), g.stride(1), padding), tokens


def _grouped(x: Tensor, groups: int, eps: float) -> structures.Grouped:
    assert x.dtype == torch.float32 and x.is_contiguous(memory_format=torch.channels_last)
    _, channels, height, width = x.shape
    return structures.Grouped(height * width, channels, groups, eps)
