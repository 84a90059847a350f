"""Calls the compiled kernels for noise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from tacit.native import structures
from tacit.native.calls import Calls
from tacit.noise import quantile, rounding

_GROUP = 256
_FUNCTIONS = {torch.float32: "tacit_release_floats", torch.float64: "tacit_release_doubles"}


class Noise(Calls):
    """Keystreams and exactly rounded noise.

    Keys are 32 bytes and nonces 16: the number of the first block, then the nonce of RFC 8439.
    """

    def keystream(self, key: bytes, nonce: bytes, groups: int) -> Tensor:
        """The first 256 words of the keystream for each group, as signed integers."""
        words = torch.empty(groups * _GROUP, dtype=torch.int32, device="cpu")
        self._call("tacit_keystream", _stream(key, nonce), words, groups)
        return words

    def release_(
        self, vector: Tensor, key: bytes, nonce: bytes, runs: Sequence[rounding.Run]
    ) -> list[int]:
        """As `tacit.noise.rounding.release_`, with the words of a keystream."""
        assert vector.is_contiguous() and vector.is_cpu and runs[-1].end == vector.numel()
        room = 64 + vector.numel() // 2**14
        undecided = torch.empty(room, dtype=torch.int64, device="cpu")
        left = getattr(self._library, _FUNCTIONS[vector.dtype])(
            *(self._level, torch.get_num_threads(), _stream(key, nonce), _quantile(), _tail()),
            *((structures.Run * len(runs))(*map(_run, runs)), len(runs)),
            *(vector.data_ptr(), undecided.data_ptr(), room),
        )
        assert left <= room  # Fails with probability below 2^-200.
        return undecided[:left].tolist()


def _stream(key: bytes, nonce: bytes) -> structures.Stream:
    return structures.Stream.from_buffer_copy(key + nonce)


def _run(run: rounding.Run) -> structures.Run:
    grid = run.grid
    limits = grid.ratio, grid.limit, grid.slope
    return structures.Run(run.end, 1 / grid.step, run.factor, *limits)


@cache
def _quantile() -> structures.Quantile:
    return structures.Quantile(
        quantile.LOG_COEFFICIENTS,
        quantile.QUANTILE_COEFFICIENTS,
        quantile.QUANTILE_CENTRE,
        quantile.LOWEST,
    )


@cache
def _tail() -> structures.Tail:
    table = quantile.tail_table()
    return structures.Tail(
        *(table.ctypes.data, quantile.TAIL_NODES, quantile.TAIL_DEGREE, quantile.TAIL_SPACING),
        *(quantile.TAIL_ERROR, quantile.FAR_TAIL),
    )
