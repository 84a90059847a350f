"""Calls the compiled kernels with tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int64

import torch
from torch import Tensor

from tacit.native import structures
from tacit.native.products import Products
from tacit.native.structures import Windows

_LEVELS = ("baseline", "avx2", "avx512")
_GROUP = 256


class Library:
    """The compiled kernels for one instruction set.

    Keys are 32 bytes and nonces 16: the number of the first block, then the nonce of RFC 8439.
    As many threads work as torch uses, in torch's own OpenMP runtime.
    """

    def __init__(self, library: ctypes.CDLL, level: int, build: str) -> None:
        self._library = library
        self._level = level
        self.name = _LEVELS[level]
        self.build = build
        """Names the machine code: another compiler may round another way."""

    def _call(self, name: str, *arguments: object) -> None:
        """Call a function by name; tensors are passed by address and kept alive meanwhile."""
        addresses = (a.data_ptr() if isinstance(a, Tensor) else a for a in arguments)
        getattr(self._library, name)(self._level, *addresses)

    def keystream(self, key: bytes, nonce: bytes, groups: int) -> Tensor:
        """The first 256 words of the keystream for each group, as signed integers."""
        words = torch.empty(groups * _GROUP, dtype=torch.int32, device="cpu")
        self._call("tacit_keystream", _stream(key, nonce), words, groups)
        return words

    def normals(self, key: bytes, nonce: bytes, count: int) -> Tensor:
        """Independent standard normal numbers: the same for any number of threads."""
        out = torch.empty(count, dtype=torch.float32, device="cpu")
        self._call("tacit_normals", torch.get_num_threads(), _stream(key, nonce), out, count)
        return out

    def perturb_(
        self,
        vector: Tensor,
        key: bytes,
        nonce: bytes,
        ends: Sequence[int],
        scales: Sequence[float],
        divisor: float,
    ) -> Tensor:
        """Make a vector (vector + scale · normal numbers) / divisor, in its own memory.

        The scale changes after each of `ends`.
        """
        _check(vector)
        assert ends[-1] == vector.numel()
        self._call(
            *("tacit_perturb", torch.get_num_threads(), _stream(key, nonce), vector),
            *(
                (c_int64 * len(ends))(*ends),
                (c_float * len(scales))(*scales),
                len(ends),
                1 / divisor,
            ),
        )
        return vector

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
        _check(factors)
        assert len(factors) == len(x)
        total = x.new_empty(*windows.kernel, x.shape[3], g.shape[3])
        threads = torch.get_num_threads()
        self._call("tacit_convolution_sum", threads, shape, len(x), x, g, factors, total)
        return total

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
            *("tacit_convolved", threads, shape, taps, len(x), x, weight, _packed(bias), y),
        )
        return y

    def outer_squares(self, products: Products) -> Tensor:
        """Squared norms of records' gradients, [records, groups]."""
        sizes = (products.records, products.groups)
        squares = torch.empty(sizes, dtype=torch.float32, device="cpu")
        self._call_on("tacit_outer_squares", products, squares)
        return squares

    def outer_sums(self, products: Products, factors: Tensor) -> None:
        """Sums of gradients over records, each times its group's factor, [records, groups].

        No two sums may share memory.
        """
        _check(factors)
        assert factors.shape == (products.records, products.groups)
        self._call_on("tacit_outer_sums", products, factors)

    def _call_on(self, name: str, products: Products, numbers: Tensor) -> None:
        threads, described = torch.get_num_threads(), products.described
        self._call(name, threads, described, len(described), *numbers.shape, numbers)

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
            *(x, transformed, _packed(bias), y),
        )
        return y

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
        _check(factors)
        assert len(factors) == len(x)
        total = x.new_empty(3, 3, shape.channels, shape.outputs)
        self._call("tacit_winograd_sum", torch.get_num_threads(), shape, x, g, factors, total)
        return total

    def group_norm(
        self, x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `torch.native_group_norm`, for images in channels-last format."""
        images, shape = len(x), _grouped(x, groups, eps)
        y = torch.empty_like(x)
        mean, rstd = x.new_empty(images, groups), x.new_empty(images, groups)
        self._call(
            *("tacit_group_norm", torch.get_num_threads(), shape, images, x),
            *(_packed(weight), _packed(bias), y, mean, rstd),
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
            *(x, g, _packed(weight), mean, rstd, dx, scale, shift),
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
        _check(factors, total)
        threads = torch.get_num_threads()
        self._call("tacit_table_sum", threads, shape, len(g), tokens, g, factors, total)


def _check(*tensors: Tensor) -> None:
    """What the kernels take for granted: anything else would read or write elsewhere."""
    for tensor in tensors:
        assert tensor.dtype == torch.float32 and tensor.is_contiguous()
        assert tensor.device.type == "cpu"


def _winograd(x: Tensor, g: Tensor, padding: int) -> structures.Winograd:
    """A convolution from images to outputs, both [images, rows, columns, channels]."""
    _check(x, g)
    images, height, width, channels = x.shape
    rows, columns, outputs = g.shape[1:]
    assert len(g) == images and channels % 16 == outputs % 16 == 0
    assert (rows, columns) == (height + 2 * padding - 2, width + 2 * padding - 2)
    return structures.Winograd(images, height, width, channels, rows, columns, outputs, padding)


def _planar(x: Tensor, g: Tensor, windows: Windows) -> structures.Planar:
    """A convolution of images [images, rows, columns, channels]."""
    _check(x, g)
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


def _lookups(tokens: Tensor, g: Tensor, padding: int) -> tuple[structures.Lookups, Tensor]:
    assert g.dtype == torch.float32 and tokens.shape == g.shape[:2]
    assert g.shape[2] == 1 or g.stride(2) == 1
    tokens = tokens.to(torch.int64).contiguous()
    return structures.Lookups(*g.shape[1:], g.stride(0), g.stride(1), padding), tokens


def _grouped(x: Tensor, groups: int, eps: float) -> structures.Grouped:
    assert x.dtype == torch.float32 and x.is_contiguous(memory_format=torch.channels_last)
    _, channels, height, width = x.shape
    return structures.Grouped(height * width, channels, groups, eps)


def _images(*shape: int) -> Tensor:
    form = torch.channels_last
    return torch.empty(shape, dtype=torch.float32, device="cpu", memory_format=form)


def _packed(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _stream(key: bytes, nonce: bytes) -> structures.Stream:
    return structures.Stream.from_buffer_copy(key + nonce)
