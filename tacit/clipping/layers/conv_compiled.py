"""Convolutions, and the way back through them, by compiled kernels where these beat torch's own.

Winograd's method F(2 × 2, 3 × 3) takes 16 products where a sum over taps takes 36. Images with few
channels leave most of a vector empty in torch's way back, but not in ours, and with large kernels
torch is slower on the way there as well. Whether a kernel is used follows from the shape of one
image, so that neither other records nor another process change the bits of a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tacit import native
from tacit.clipping.layers.conv_geometry import Geometry
from tacit.native import Library

LANES = 16
FEWEST_CHANNELS = 32
"""For Winograd's method: with fewer, transforms cost more than products save."""
_FEWEST_TILES = 16
"""In one image. With fewer, the transforms of weights do. Batches may not decide, or the bits of a
record's gradient would follow from how many others there are."""
_NARROW, _NARROW_WITH_STRIDE = 7, 16
"""Channels up to which our way back is the faster one."""
_LARGE_KERNEL = 16
"""Taps from which on our way there is the faster one for images with at most 16 channels."""


class Compiled:
    """A planar convolution of images in channels-last format, as kernels do it."""

    def __init__(self, weight: Tensor, geometry: Geometry) -> None:
        self._weight, self._geometry = weight, geometry
        outputs, channels = weight.shape[:2]
        square = geometry.padding[:1] * 2 == geometry.padding and geometry.stride == (1, 1)
        self._threes = tuple(weight.shape[2:]) == (3, 3) and square and geometry.padding[0] <= 2
        lanes = outputs % LANES == channels % LANES == 0
        self._wide = lanes and min(outputs, channels) >= FEWEST_CHANNELS
        steps = max(geometry.stride)
        self._narrow = channels <= (_NARROW_WITH_STRIDE if steps > 1 else _NARROW)
        self._large = weight.shape[2] * weight.shape[3] >= _LARGE_KERNEL and channels <= LANES

    @classmethod
    def of(cls, weight: Tensor, geometry: Geometry) -> Compiled | None:
        """None where the kernels do not know such a convolution at all."""
        if weight.dim() != 4 or geometry.groups != 1 or geometry.dilation != (1, 1):
            return None
        plain = weight.dtype == torch.float32 and weight.device.type == "cpu"
        rows = weight.shape[2] == 1 or weight.stride(2) == weight.shape[3] * weight.stride(3)
        return cls(weight, geometry) if plain and rows else None

    def helps(self, x: Tensor) -> bool:
        """Whether one of the ways below is better than torch's for such images."""
        there = self._winograd(x) is not None or self._there(x) is not None
        return there or (x.requires_grad and self._back(x) is not None)

    def convolved(self, x: Tensor, bias: Tensor | None) -> Tensor | None:
        """The convolution; None where torch should do it."""
        if bias is not None and not self._fits(bias):
            return None
        kernels, (top, left) = self._winograd(x), self._geometry.padding
        if kernels is not None:
            return kernels.winograd(x, self._weight, bias, top, back=False)
        kernels, (down, right) = self._there(x), self._geometry.stride
        if kernels is None:
            return None
        return kernels.convolved(x, self._weight, bias, (down, right), (top, left))

    def gradient(self, x: Tensor, g: Tensor) -> Tensor | None:
        """The gradient of the images x from that of the outputs; None as above."""
        weight, geometry = self._weight, self._geometry
        kernels, padding = self._winograd(x), geometry.padding
        if kernels is not None:
            g = g.contiguous(memory_format=torch.channels_last)
            return kernels.winograd(g, weight, None, padding[0], back=True)
        kernels = self._back(x)
        if kernels is None:
            return None
        g = g.contiguous(memory_format=torch.channels_last)
        (high, wide), (down, right), (top, left) = x.shape[2:], geometry.stride, padding
        return kernels.image_gradients(g, weight, (high, wide), (down, right), (top, left))

    def _winograd(self, x: Tensor) -> Library | None:
        if not (self._threes and self._wide):
            return None
        pad = 2 * self._geometry.padding[0]
        down, across = ((n + pad - 1) // 2 for n in x.shape[2:])
        return self._kernels_for(x) if down * across >= _FEWEST_TILES else None

    def _there(self, x: Tensor) -> Library | None:
        if not self._large or self._smaller_than_kernel(x):
            return None
        # With a single channel, strides of nothing say which format torch would take.
        last = x.shape[1] > 1 or 1 in (x.stride(1), self._weight.stride(1))
        return self._kernels_for(x) if last else None

    def _smaller_than_kernel(self, x: Tensor) -> bool:
        sizes = zip(x.shape[2:], self._geometry.padding, self._weight.shape[2:], strict=True)
        return any(size + 2 * padding < taps for size, padding, taps in sizes)

    def _back(self, x: Tensor) -> Library | None:
        return self._kernels_for(x) if self._narrow else None

    def _fits(self, bias: Tensor) -> bool:
        """Whether a bias is what torch would take without complaint."""
        plain = bias.dtype == torch.float32 and bias.device.type == "cpu"
        return plain and bias.shape == self._weight.shape[:1]

    def _kernels_for(self, x: Tensor) -> Library | None:
        if x.dim() != 4 or x.shape[1] != self._weight.shape[1] or not x.numel():
            return None
        plain = x.dtype == torch.float32 and x.device.type == "cpu" and not x.is_neg()
        last = x.is_contiguous(memory_format=torch.channels_last)
        either = x.is_contiguous() and x.shape[1] > 1  # a single pixel, which torch takes as rows
        return native.active() if plain and last and not either else None
