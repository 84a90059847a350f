"""Loads the compiled kernels and calls them with tensors."""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

_PATH = Path(__file__).with_name("kernels.so")
_VERSION = 4
_LEVELS = ("baseline", "avx2", "avx512")
_GROUP = 256


class _Stream(ctypes.Structure):
    _fields_ = (("key", ctypes.c_uint32 * 8), ("start", ctypes.c_uint32 * 4))


class _Planar(ctypes.Structure):
    _fields_ = tuple(
        (name, c_int64)
        for name in (
            *("channels", "height", "width", "outputs", "out_height", "out_width"),
            *("kernel_height", "kernel_width", "step_down", "step_right"),
            *("pad_down", "pad_right", "tap_down", "tap_right"),
        )
    )


class _Grouped(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("pixels", "channels", "groups")),
        ("eps", ctypes.c_double),
    )


class _Lookups(ctypes.Structure):
    _fields_ = tuple(
        (name, c_int64)
        for name in ("positions", "width", "record_stride", "position_stride", "padding")
    )


_SIGNATURES: dict[str, list[type]] = {
    "tacit_keystream": [c_int32, POINTER(_Stream), c_void_p, c_int64],
    "tacit_normals": [c_int32, c_int32, POINTER(_Stream), c_void_p, c_int64],
    "tacit_perturb": [
        *(c_int32, c_int32, POINTER(_Stream), c_void_p),
        *(POINTER(c_int64), POINTER(c_float), c_int64, c_float),
    ],
    "tacit_convolution": [
        *(c_int32, c_int32, POINTER(_Planar), c_int64),
        *(c_void_p, c_void_p, c_void_p, c_void_p),
    ],
    "tacit_group_norm": [c_int32, c_int32, POINTER(_Grouped), c_int64, *[c_void_p] * 6],
    "tacit_group_norm_backward": [c_int32, c_int32, POINTER(_Grouped), c_int64, *[c_void_p] * 8],
    "tacit_table_norms": [c_int32, c_int32, POINTER(_Lookups), c_int64, c_int64, *[c_void_p] * 3],
    "tacit_table_sum": [c_int32, c_int32, POINTER(_Lookups), c_int64, *[c_void_p] * 4],
}


class Library:
    """The compiled kernels for one instruction set.

    Keys are 32 bytes and nonces 16: the number of the first block, then the nonce of RFC 8439.
    As many threads work as torch uses, in torch's own OpenMP runtime.
    """

    def __init__(self, library: ctypes.CDLL, level: int) -> None:
        self._library = library
        self._level = level
        self.name = _LEVELS[level]

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
        self,
        x: Tensor,
        g: Tensor,
        kernel: tuple[int, int],
        stride: tuple[int, int],
        padding: tuple[int, int],
        dilation: tuple[int, int],
        out: Tensor | None,
    ) -> Tensor:
        """Squared norms of the kernel gradients of images [images, rows, columns, channels].

        The gradients themselves go to `out`, [images, *kernel, channels, outputs], if it is given.
        """
        _check(x, g)
        images, height, width, channels = x.shape
        _, out_height, out_width, outputs = g.shape
        shape = _Planar(
            *(channels, height, width, outputs, out_height, out_width),
            *(*kernel, *stride, *padding, *dilation),
        )
        squares = x.new_empty(images)
        threads = torch.get_num_threads()
        self._call("tacit_convolution", threads, shape, images, x, g, out, squares)
        return squares

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


def _lookups(tokens: Tensor, g: Tensor, padding: int) -> tuple[_Lookups, Tensor]:
    assert g.dtype == torch.float32 and tokens.shape == g.shape[:2]
    assert g.shape[2] == 1 or g.stride(2) == 1
    tokens = tokens.to(torch.int64).contiguous()
    return _Lookups(*g.shape[1:], g.stride(0), g.stride(1), padding), tokens


def _grouped(x: Tensor, groups: int, eps: float) -> _Grouped:
    assert x.dtype == torch.float32 and x.is_contiguous(memory_format=torch.channels_last)
    _, channels, height, width = x.shape
    return _Grouped(height * width, channels, groups, eps)


def _packed(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _stream(key: bytes, nonce: bytes) -> _Stream:
    return _Stream.from_buffer_copy(key + nonce)


@functools.cache
def _loaded() -> tuple[Library, ...]:
    """A library for each instruction set that this processor has; none without the kernels."""
    if not _PATH.exists():
        return ()
    try:
        library = _opened()
        found = library.tacit_version()
        if found != _VERSION:
            raise OSError(f"it is of version {found}, not {_VERSION}")
    except OSError as error:
        warnings.warn(
            f"the compiled kernels of tacit cannot be used ({error}); everything works without"
            " them, more slowly. Install the package again to build them anew",
            stacklevel=2,
        )
        return ()
    for name, types in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, None
    return tuple(Library(library, level) for level in range(library.tacit_levels()))


def _opened() -> ctypes.CDLL:
    """The library, with the OpenMP runtime that torch has loaded, or else the system's."""
    try:
        return ctypes.CDLL(str(_PATH))
    except OSError:
        ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(_PATH))


def available() -> bool:
    """Whether there are compiled kernels to use."""
    return active() is not None


_limit: int | None = None


def active() -> Library | None:
    """The kernels for the best instruction set of this processor, or None without kernels."""
    if os.environ.get("TACIT_NATIVE", "1") == "0":
        return None
    libraries = _loaded()[:_limit]
    return libraries[-1] if libraries else None


@contextmanager
def limited_to(levels: int) -> Iterator[None]:
    """Use only the first so many instruction sets for a while; none at all with 0."""
    global _limit
    before, _limit = _limit, levels
    try:
        yield
    finally:
        _limit = before
