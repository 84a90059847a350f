"""Calls of the compiled kernels for planar convolutions."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.native import structures
from tacit.native.calls import Calls, check, packed
from tacit.native.structures import Windows


class Convolutions(Calls):
    """Convolutions of images with channels innermost, their gradients and norms of these."""

    def kernel_gradients(
        self, x: Tensor, g: Tensor, windows: Windows, out: Tensor | None
    ) -> Tensor:
        """Squared norms of the kernel gradients of images [images, rows, columns, channels].

        The gradients themselves go to `out`, [images, *kernel, channels, outputs], if it is given.
        """
        shape, squares = _planar(x, g, windows), x.new_empty(len(x))
        threads = torch.get_num_threads()
        self._call("tacit_convolution", threads, shape, len(x), x, g, out, squares)
        return squares

    def kernel_gradient_sum(
        self, x: Tensor, g: Tensor, windows: Windows, factors: Tensor
    ) -> Tensor:
        """The sum of the same gradients, each times its image's factor."""
        shape = _planar(x, g, windows)
        check(factors)
        assert len(factors) == len(x)
        total = x.new_empty(*windows.kernel, x.shape[3], g.shape[3])
        threads = torch.get_num_threads()
        self._call("tacit_convolution_sum", threads, shape, len(x), x, g, factors, total)
        return total

    def convolved(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> Tensor:
        """Convolve images with few channels, in channels-last format as the result."""
        assert x.dtype == torch.float32 and x.is_contiguous(memory_format=torch.channels_last)
        shape, taps = _weights(weight, (x.shape[2], x.shape[3]), stride, padding)
        assert x.shape[1] == shape.channels and (bias is None or len(bias) == shape.outputs)
        y = _images(len(x), shape.outputs, shape.out_height, shape.out_width)
        threads = torch.get_num_threads()
        self._call(
            *("tacit_convolved", threads, shape, taps, len(x), x, weight, packed(bias), y),
        )
        return y

    def image_gradients(
        self,
        g: Tensor,
        weight: Tensor,
        size: tuple[int, int],
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> Tensor:
        """Gradients of images of this height and width from those of what they were convolved to.

        Both are in channels-last format. Made for images with few channels.
        """
        assert g.dtype == torch.float32 and g.is_contiguous(memory_format=torch.channels_last)
        shape, taps = _weights(weight, size, stride, padding)
        assert tuple(g.shape[1:]) == (shape.outputs, shape.out_height, shape.out_width)
        dx = _images(len(g), shape.channels, *size)
        threads = torch.get_num_threads()
        self._call("tacit_convolution_back", threads, shape, taps, len(g), g, weight, dx)
        return dx

    def winograd(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, *, back: bool
    ) -> Tensor:
        """Convolve images in channels-last format with kernels of 3 × 3, stride 1.

        With `back`, x is the gradient of such a convolution's output and the result that of its
        input. Channels and outputs are multiples of sixteen; the result is in channels-last format.
        """
        assert x.dtype == weight.dtype == torch.float32
        assert x.is_contiguous(memory_format=torch.channels_last)
        outputs, channels = weight.shape[:2]
        strides = weight.stride()[1::-1]
        tap = weight.stride(3)
        assert weight.shape[2:] == (3, 3) and weight.stride(2) == 3 * tap
        if back:
            outputs, channels, strides, padding = channels, outputs, strides[::-1], 2 - padding
        images, given, height, width = x.shape
        high, wide = height + 2 * padding - 2, width + 2 * padding - 2
        assert given == channels and channels % 16 == outputs % 16 == 0
        threads = torch.get_num_threads()
        taps = structures.Taps(channels, outputs, *strides, tap, back)
        transformed = x.new_empty(16 * channels * outputs)
        self._call("tacit_winograd_weights", threads, taps, weight, transformed)
        y = _images(images, outputs, high, wide)
        sizes = (images, height, width, channels, high, wide, outputs, padding)
        self._call(
            *("tacit_winograd", threads, structures.Winograd(*sizes)),
            *(x, transformed, packed(bias), y),
        )
        return y

    def winograd_gradients(self, x: Tensor, g: Tensor, padding: int, out: Tensor | None) -> Tensor:
        """As `kernel_gradients`, for kernels of 3 × 3 and stride 1, by Winograd's method.

        Channels and outputs are multiples of sixteen.
        """
        shape, squares = _winograd(x, g, padding), x.new_empty(len(x))
        self._call("tacit_winograd_gradients", torch.get_num_threads(), shape, x, g, out, squares)
        return squares

    def winograd_sum(self, x: Tensor, g: Tensor, padding: int, factors: Tensor) -> Tensor:
        """The sum of the same gradients, each times its image's factor: [3, 3, channels, outputs].

        The number of threads changes no bit.
        """
        shape, factors = _winograd(x, g, padding), factors.contiguous()
        check(factors)
        assert len(factors) == len(x)
        total = x.new_empty(3, 3, shape.channels, shape.outputs)
        self._call("tacit_winograd_sum", torch.get_num_threads(), shape, x, g, factors, total)
        return total

    def pixel_norms(self, x: Tensor, g: Tensor, windows: Windows) -> tuple[Tensor, Tensor]:
        """Squared norms as of `kernel_gradients` in double precision, steps and taps of one pixel.

        They come from inner products; beside them, for every image, the norms of what its output
        pixels add to the gradient, added up.
        """
        shape = _planar(x, g, windows)
        assert windows.stride == windows.dilation == (1, 1)
        reach = zip(x.shape[1:3], windows.padding, windows.kernel, strict=True)
        assert tuple(n + 2 * p - k + 1 for n, p, k in reach) == tuple(g.shape[1:3])
        squares, parts = (x.new_empty(len(x), dtype=torch.float64) for _ in range(2))
        threads = torch.get_num_threads()
        self._call("tacit_pixel_norms", threads, shape, len(x), x, g, squares, parts)
        return squares, parts


def _winograd(x: Tensor, g: Tensor, padding: int) -> structures.Winograd:
    """A convolution from images to outputs, both [images, rows, columns, channels]."""
    check(x, g)
    images, height, width, channels = x.shape
    rows, columns, outputs = g.shape[1:]
    assert len(g) == images and channels % 16 == outputs % 16 == 0
    assert (rows, columns) == (height + 2 * padding - 2, width + 2 * padding - 2)
    return structures.Winograd(images, height, width, channels, rows, columns, outputs, padding)


def _planar(x: Tensor, g: Tensor, windows: Windows) -> structures.Planar:
    """A convolution of images [images, rows, columns, channels]."""
    check(x, g)
    (images, height, width, channels), (given, out_height, out_width, outputs) = x.shape, g.shape
    assert given == images
    return structures.Planar(
        *(channels, height, width, outputs, out_height, out_width),
        *(n for pair in windows for n in pair),
    )


def _weights(
    weight: Tensor, size: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> tuple[structures.Planar, structures.Taps]:
    """A convolution of images of this height and width, and where its weights lie."""
    outputs, channels, *kernel = weight.shape
    tap = weight.stride(3)
    assert weight.dtype == torch.float32
    assert kernel[0] == 1 or weight.stride(2) == kernel[1] * tap
    ends = ((n + 2 * p - k) // s for n, p, k, s in zip(size, padding, kernel, stride, strict=True))
    shape = structures.Planar(
        *(channels, *size, outputs, *(end + 1 for end in ends)),
        *(*kernel, *stride, *padding, 1, 1),
    )
    return shape, structures.Taps(channels, outputs, weight.stride(1), weight.stride(0), tap, 0)


def _images(*shape: int) -> Tensor:
    form = torch.channels_last
    return torch.empty(shape, dtype=torch.float32, device="cpu", memory_format=form)
