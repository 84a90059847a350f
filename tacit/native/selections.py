"""Calls of the compiled kernels that let some numbers through and remember which."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.native import structures
from tacit.native.calls import Calls

_BLOCK, _WORDS = 512, 16
MOST_TAPS = 256


class Selections(Calls):
    """Numbers above zero, and the largest numbers of windows."""

    def rectified(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As `torch.relu`, and beside it what `rectified_back` needs."""
        form = _form(x)
        y = torch.empty_like(x, memory_format=form)
        size = x.numel()
        dropped = torch.empty(-(-size // _BLOCK) * _WORDS, dtype=torch.int32, device="cpu")
        self._call("tacit_rectify", torch.get_num_threads(), size, x, y, dropped)
        return y, dropped

    def rectified_back(self, g: Tensor, dropped: Tensor, form: torch.memory_format) -> Tensor:
        """The gradient of x from that of its rectified numbers, in the format that x had."""
        g = g.contiguous(memory_format=form)
        assert g.dtype == torch.float32 and dropped.numel() * _BLOCK >= g.numel() * _WORDS
        dx = torch.empty_like(g, memory_format=form)
        self._call("tacit_rectify_back", torch.get_num_threads(), g.numel(), g, dropped, dx)
        return dx

    def largest(
        self, x: Tensor, window: tuple[int, int], step: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """As `torch.max_pool2d` with windows so many pixels apart.

        Images are in channels-last format, and channels are a multiple of sixteen. Beside the
        result is what `largest_back` needs.
        """
        assert x.dtype == torch.float32 and x.is_contiguous(memory_format=torch.channels_last)
        shape = _pooled(x.shape, window, step)
        sizes = (len(x), shape.channels, shape.out_height, shape.out_width)
        y, taps = (
            torch.empty(sizes, dtype=kind, device="cpu", memory_format=torch.channels_last)
            for kind in (torch.float32, torch.uint8)
        )
        self._call("tacit_largest", torch.get_num_threads(), shape, len(x), x, y, taps)
        return y, taps

    def largest_back(
        self,
        g: Tensor,
        taps: Tensor,
        size: torch.Size,
        window: tuple[int, int],
        step: tuple[int, int],
    ) -> Tensor:
        """The gradient of images of this size from that of the largest numbers of their windows."""
        form = torch.channels_last
        g = g.contiguous(memory_format=form)
        shape = _pooled(size, window, step)
        assert g.dtype == torch.float32 and g.shape == taps.shape
        assert tuple(g.shape[1:]) == (shape.channels, shape.out_height, shape.out_width)
        assert taps.is_contiguous(memory_format=form) and len(g) == size[0]
        dx = torch.empty(size, dtype=torch.float32, device="cpu", memory_format=form)
        self._call("tacit_largest_back", torch.get_num_threads(), shape, len(g), g, taps, dx)
        return dx


def which_dropped(dropped: Tensor, size: torch.Size, form: torch.memory_format) -> Tensor:
    """Where numbers of a tensor of this size and format became zero, as `rectified` tells."""
    shifts = torch.arange(_BLOCK // _WORDS, dtype=torch.int32).view(1, -1, 1)
    bits = (dropped.view(-1, 1, _WORDS) >> shifts & 1).bool().flatten()[: size.numel()]
    if form == torch.contiguous_format:
        return bits.view(size)
    images, channels, height, width = size
    return bits.view(images, height, width, channels).permute(0, 3, 1, 2)


def _form(x: Tensor) -> torch.memory_format:
    """The format without gaps in which a tensor is."""
    assert x.dtype == torch.float32 and x.device.type == "cpu"
    if x.is_contiguous():
        return torch.contiguous_format
    assert x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last


def _pooled(size: torch.Size, window: tuple[int, int], step: tuple[int, int]) -> structures.Pooled:
    _, channels, height, width = size
    (high, wide), (down, right) = window, step
    assert channels % 16 == 0 and 0 < high * wide <= MOST_TAPS and min(down, right) > 0
    assert high <= height and wide <= width
    found = ((height - high) // down + 1, (width - wide) // right + 1)
    return structures.Pooled(channels, height, width, *found, high, wide, down, right)
