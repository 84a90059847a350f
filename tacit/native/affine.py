"""Calls of the compiled kernels for linear layers: there, and back to their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tacit.native.calls import Calls
from tacit.native.products import plain, readable
from tacit.native.structures import numbers


class Layer(NamedTuple):
    """A matrix [outputs, inputs], what is added to its results, and whether they are rectified."""

    weight: Tensor
    bias: Tensor | None = None
    rectified: bool = False


class Affine(Calls):
    """Rows times a matrix, with what follows: the same for a row whatever other rows there are.

    Layers that follow each other take one call. Results are None where there is a tensor that the
    kernels cannot read, or that does not fit.
    """

    def affine(self, x: Tensor, layers: Sequence[Layer]) -> list[Tensor] | None:
        """Every layer's result: `torch.nn.functional.linear`, and its `torch.relu` if that is
        asked for, of the one before."""
        if not readable(x):
            return None
        rows, terms = x.shape
        address, stride = x.data_ptr(), x.stride(0)
        results, described = [], []
        for weight, bias, rectified in layers:
            if not readable(weight):
                return None
            columns, inputs = weight.shape
            if inputs != terms or not (bias is None or _shifts(bias, columns)):
                return None
            y = torch.empty(rows, columns, dtype=torch.float32, device="cpu")
            shift, result = 0 if bias is None else bias.data_ptr(), y.data_ptr()
            described += [
                *(address, weight.data_ptr(), shift, 0, result, rows, terms, columns),
                *(stride, weight.stride(0), 0, True, rectified),
            ]
            results.append(y)
            address, stride, terms = result, columns, columns
        self._run(described, len(results))
        return results

    def affine_back(
        self, g: Tensor, steps: Sequence[tuple[Tensor, Tensor | None]]
    ) -> list[Tensor] | None:
        """The gradient of a layer's input from that of its result, and so on from layer to layer.

        Each step has the layer's weight, and what its input was rectified to if it was: where that
        is not above zero, the gradient is zero.
        """
        if not readable(g):
            return None
        rows, terms = g.shape
        address, stride = g.data_ptr(), g.stride(0)
        results, described = [], []
        for weight, above in steps:
            if not (readable(weight) and (above is None or readable(above))):
                return None
            outputs, columns = weight.shape
            if outputs != terms or not (above is None or above.shape == (rows, columns)):
                return None
            dx = torch.empty(rows, columns, dtype=torch.float32, device="cpu")
            let_through, apart = (0, 0) if above is None else (above.data_ptr(), above.stride(0))
            result = dx.data_ptr()
            described += [
                *(address, weight.data_ptr(), 0, let_through, result, rows, terms, columns),
                *(stride, weight.stride(0), apart, False, False),
            ]
            results.append(dx)
            address, stride, terms = result, columns, columns
        self._run(described, len(results))
        return results

    def _run(self, described: Sequence[int], count: int) -> None:
        threads = torch.get_num_threads()
        self._library.tacit_affine(self._level, threads, numbers(described), count)


def _shifts(bias: Tensor, outputs: int) -> bool:
    return bias.shape == (outputs,) and plain(bias) and (bias.stride(0) == 1 or outputs == 1)
