"""What the compiled kernels take: the structures of `kernels.h`, and types of arguments."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_void_p
from typing import NamedTuple


class Windows(NamedTuple):
    """Which pixels of an image meet the taps of a planar kernel: down, right."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


class Stream(ctypes.Structure):
    _fields_ = (("key", ctypes.c_uint32 * 8), ("start", ctypes.c_uint32 * 4))


class Quantile(ctypes.Structure):
    _fields_ = (
        *(("log", c_float * 7), ("quantile", c_float * 11), ("centre", c_float)),
        ("lowest", c_int32),
    )


class Run(ctypes.Structure):
    _fields_ = (
        *(("end", c_int64), ("inverse", ctypes.c_double), ("factor", ctypes.c_double)),
        *((name, c_float) for name in ("ratio", "limit", "slope")),
    )


class Tail(ctypes.Structure):
    _fields_ = (
        *(("table", c_void_p), ("nodes", c_int64), ("degree", c_int64)),
        *(("spacing", ctypes.c_double), ("error", ctypes.c_double)),
        ("guess", ctypes.c_double * 5),
    )


class Planar(ctypes.Structure):
    _fields_ = tuple(
        (name, c_int64)
        for name in (
            *("channels", "height", "width", "outputs", "out_height", "out_width"),
            *("kernel_height", "kernel_width", "step_down", "step_right"),
            *("pad_down", "pad_right", "tap_down", "tap_right"),
        )
    )


class Grouped(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("pixels", "channels", "groups")),
        ("eps", ctypes.c_double),
    )


class Lookups(ctypes.Structure):
    _fields_ = tuple(
        (name, c_int64)
        for name in ("positions", "width", "record_stride", "position_stride", "padding")
    )


class Winograd(ctypes.Structure):
    _fields_ = tuple(
        (name, c_int64)
        for name in (
            *("images", "height", "width", "channels"),
            *("out_height", "out_width", "outputs", "pad"),
        )
    )


class Taps(ctypes.Structure):
    _fields_ = tuple(
        (name, c_int64)
        for name in (
            *("channels", "outputs", "channel_stride", "output_stride", "tap_stride", "flipped"),
        )
    )


class Pooled(ctypes.Structure):
    _fields_ = tuple(
        (name, c_int64)
        for name in (
            *("channels", "height", "width", "out_height", "out_width"),
            *("window_height", "window_width", "step_down", "step_right"),
        )
    )


def numbers(fields: Sequence[int]) -> bytes:
    """Structures that have nothing but addresses and integers of 64 bits, one after the other.

    Those that are needed for every layer of every step: `ctypes` takes several times as long.
    """
    return struct.pack(f"{len(fields)}q", *fields)


_RELEASE: list[type] = [
    *(c_int32, c_int32, POINTER(Stream), POINTER(Quantile), POINTER(Tail), POINTER(Run), c_int64),
    *(c_void_p, c_void_p, c_int64),
]
SIGNATURES: dict[str, list[type]] = {
    "tacit_keystream": [c_int32, POINTER(Stream), c_void_p, c_int64],
    "tacit_release_floats": _RELEASE,
    "tacit_release_doubles": _RELEASE,
    "tacit_tags": [c_int32, c_int32, c_void_p, c_int64, c_void_p, c_void_p],
    "tacit_convolution": [
        *(c_int32, c_int32, POINTER(Planar), c_int64),
        *(c_void_p, c_void_p, c_void_p, c_void_p),
    ],
    "tacit_convolution_sum": [
        *(c_int32, c_int32, POINTER(Planar), c_int64),
        *(c_void_p, c_void_p, c_void_p, c_void_p),
    ],
    "tacit_winograd_weights": [c_int32, c_int32, POINTER(Taps), c_void_p, c_void_p],
    "tacit_winograd": [c_int32, c_int32, POINTER(Winograd), *[c_void_p] * 4],
    "tacit_pixel_norms": [c_int32, c_int32, POINTER(Planar), c_int64, *[c_void_p] * 4],
    "tacit_winograd_gradients": [c_int32, c_int32, POINTER(Winograd), *[c_void_p] * 4],
    "tacit_winograd_sum": [c_int32, c_int32, POINTER(Winograd), *[c_void_p] * 4],
    "tacit_convolved": [
        *(c_int32, c_int32, POINTER(Planar), POINTER(Taps), c_int64),
        *(c_void_p, c_void_p, c_void_p, c_void_p),
    ],
    "tacit_convolution_back": [
        *(c_int32, c_int32, POINTER(Planar), POINTER(Taps), c_int64),
        *(c_void_p, c_void_p, c_void_p),
    ],
    "tacit_outer_squares": [c_int32, c_int32, c_char_p, *[c_int64] * 3, c_void_p],
    "tacit_outer_sums": [c_int32, c_int32, c_char_p, *[c_int64] * 3, c_void_p],
    "tacit_exact_squares": [c_int32, c_int32, c_char_p, *[c_int64] * 3, c_void_p],
    "tacit_exact_sums": [c_int32, c_int32, c_char_p, *[c_int64] * 3, c_void_p],
    "tacit_exact_table": [c_int32, c_int32, *[c_int64] * 4, *[c_void_p] * 3],
    "tacit_affine": [c_int32, c_int32, c_char_p, c_int64],
    "tacit_group_norm": [c_int32, c_int32, POINTER(Grouped), c_int64, *[c_void_p] * 6],
    "tacit_group_norm_backward": [c_int32, c_int32, POINTER(Grouped), c_int64, *[c_void_p] * 8],
    "tacit_table_norms": [c_int32, c_int32, POINTER(Lookups), c_int64, c_int64, *[c_void_p] * 3],
    "tacit_table_sum": [c_int32, c_int32, POINTER(Lookups), c_int64, *[c_void_p] * 4],
    "tacit_rectify": [c_int32, c_int32, c_int64, *[c_void_p] * 3],
    "tacit_rectify_back": [c_int32, c_int32, c_int64, *[c_void_p] * 3],
    "tacit_largest": [c_int32, c_int32, POINTER(Pooled), c_int64, *[c_void_p] * 3],
    "tacit_largest_back": [c_int32, c_int32, POINTER(Pooled), c_int64, *[c_void_p] * 3],
}

RESULTS = {
    "tacit_outer_squares": c_int32,
    "tacit_release_floats": c_int64,
    "tacit_release_doubles": c_int64,
}
"""Types of what functions return; the others return nothing."""
