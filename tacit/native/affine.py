"""Calls of the compiled kernels for linear layers: there, and back to their inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.native import structures
from tacit.native.calls import Calls
from tacit.native.products import plain, readable


class Affine(Calls):
    """Rows times a matrix, with what follows: the same for a row whatever other rows there are.

    Results are None for tensors that the kernels cannot read, or that do not fit each other.
    """

    def affine(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, rectified: bool = False
    ) -> Tensor | None:
        """As `torch.nn.functional.linear`, and `torch.relu` of that where it is asked for."""
        if not (readable(x) and readable(weight)):
            return None
        (rows, inputs), (outputs, terms) = x.shape, weight.shape
        if inputs != terms or not (bias is None or _shifts(bias, outputs)):
            return None
        y = torch.empty(rows, outputs, dtype=torch.float32, device="cpu")
        self._affine(
            *(x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr(), None),
            *(y.data_ptr(), rows, inputs, outputs, x.stride(0), weight.stride(0), 0),
            *(True, rectified),
        )
        return y

    def affine_back(self, g: Tensor, weight: Tensor, above: Tensor | None = None) -> Tensor | None:
        """The gradient of x from that of the result; zero where a number of `above`, which x was
        rectified to, is not above zero."""
        if not (readable(g) and readable(weight) and (above is None or readable(above))):
            return None
        (rows, outputs), (terms, inputs) = g.shape, weight.shape
        if outputs != terms or not (above is None or above.shape == (rows, inputs)):
            return None
        dx = torch.empty(rows, inputs, dtype=torch.float32, device="cpu")
        self._affine(
            *(g.data_ptr(), weight.data_ptr(), None, None if above is None else above.data_ptr()),
            *(dx.data_ptr(), rows, outputs, inputs, g.stride(0), weight.stride(0)),
            *(0 if above is None else above.stride(0), False, False),
        )
        return dx

    def _affine(self, *described: int | None) -> None:
        threads = torch.get_num_threads()
        self._library.tacit_affine(self._level, threads, structures.Affine(*described))


def _shifts(bias: Tensor, outputs: int) -> bool:
    return bias.shape == (outputs,) and plain(bias) and (bias.stride(0) == 1 or outputs == 1)
