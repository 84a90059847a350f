"""How the compiled kernels are called, and what they take for granted."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

_LEVELS = ("baseline", "avx2", "avx512")


class Calls:
    """The compiled kernels for one instruction set, by the names of their functions."""

    def __init__(self, library: ctypes.CDLL, level: int, build: str) -> None:
        self._library = library
        self._level = level
        self.name = _LEVELS[level]
        self.build = build
        """Names the machine code: another compiler may round another way."""

    def _call(self, name: str, *arguments: object) -> None:
        """Call a function by name; tensors are passed by address and kept alive meanwhile."""
        addresses = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
        getattr(self._library, name)(self._level, *addresses)


def check(*tensors: Tensor) -> None:
    """What the kernels take for granted: anything else would read or write elsewhere."""
    for tensor in tensors:
        assert tensor.dtype == torch.float32 and tensor.is_contiguous()
        assert tensor.device.type == "cpu"


def packed(tensor: Tensor | None) -> Tensor | None:
    """The tensor, if there is one, in memory without gaps."""
    return None if tensor is None else tensor.contiguous()
