"""Linear layers: how they are found, run and gone back through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack

from tacit import native
from tacit.clipping.layers.contributions import Dense
from tacit.clipping.layers.operation import (
    Gradients,
    Match,
    Operation,
    Placement,
    ReadMatch,
    Saved,
)
from tacit.clipping.layers.outer_products import OuterProducts
from tacit.clipping.layers.slots import Met, Slot, Slots

_WORTH_A_CALL = 1 << 9
"""Weights of a layer below which torch is faster than a call of the kernels."""
_WORTH_INTERCEPTING = 1 << 14
"""Weights of a layer from which on the kernels save more than interception costs."""


def linear(
    parameters: Slots, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Match | None:
    """Rule for `torch.nn.functional.linear`."""
    slots = parameters.resolve(weight, bias)
    if slots is None or weight.dim() != 2:
        return None
    return input, Linear(weight.detach(), None if bias is None else bias.detach(), *slots)


def read_linear(parameters: Slots, node: Any, met: Sequence[Met | None]) -> ReadMatch | None:
    """Reader for a matrix of activations times a transposed weight."""
    x, weight = met
    if x is not None or weight is None or not weight.transposed:
        return None
    matrix = parameters.parameters[weight.name]
    return "_saved_self", Linear(matrix, None, parameters.whole(weight.name), None)


def read_affine(parameters: Slots, node: Any, met: Sequence[Met | None]) -> ReadMatch | None:
    """Reader for the same with a bias, which may be frozen."""
    bias, x, weight = met
    if x is not None or weight is None or not weight.transposed:
        return None
    matrix = parameters.parameters[weight.name]
    slot = None
    if bias is not None:
        slot = parameters.whole(bias.name)
        if bias.transposed or slot.size != matrix.shape[:1]:
            return None
    if not node._saved_alpha == node._saved_beta == 1:
        return None
    return "_saved_mat1", Linear(matrix, None, parameters.whole(weight.name), slot)


def matmul(
    parameters: Slots, input: Tensor, other: Tensor | None = None, **unusual: object
) -> Match | None:
    """Rule for activations times a matrix of parameters."""
    if other is None or unusual or other.dim() != 2 or input.dim() < 2:
        return None
    if parameters.resolve(input) is not None:
        return None
    return linear(parameters, input, other.t())


class Linear(Operation):
    """A matrix of parameters, and a bias, that meet rows of activations.

    Kernels take layers with one position in each row, there and back; their results for a row do
    not depend on other rows, and the shape of the layer decides, so that no batch changes any bit.
    """

    kept = 1

    def __init__(
        self, weight: Tensor, bias: Tensor | None, weight_slot: Slot | None, bias_slot: Slot | None
    ) -> None:
        self._weight, self._bias = weight, bias
        self._weight_slot, self._bias_slot = weight_slot, bias_slot
        self.slots = [slot for slot in (weight_slot, bias_slot) if slot is not None]
        self.saves_input = weight_slot is not None

    def leading(self, x: Tensor) -> Sequence[int]:
        return x.shape[:-1]

    def better_intercepted(self, x: Tensor) -> bool:
        large = self._weight.numel() >= _WORTH_INTERCEPTING
        return large and native.readable(x) and _kernels_for(x) is not None

    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        return run_all([self.layer(rectified=False)], x)[0], ()

    def layer(self, *, rectified: bool) -> native.Layer:
        """The layer as kernels take it, rectified or not."""
        return native.Layer(self._weight, self._bias, rectified)

    def back(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, at: Placement | None
    ) -> tuple[Tensor | None, Gradients]:
        gradients = self.gradients(x, g, at)
        return back_through([(self._weight, None)], g)[0] if input_needed else None, gradients

    def gradients(self, x: Tensor, g: Tensor, at: Placement | None) -> Gradients:
        """The parameters' per-record gradients, where a placement says how records lie."""
        if at is None:
            return []
        gradients: Gradients = []
        outputs = at.vectors(g)
        single = Dense(outputs) if outputs.dim() == 2 else None
        if self._weight_slot is not None:
            pairs = OuterProducts(at.vectors(x), outputs, at.chooser, single)
            gradients.append((self._weight_slot, pairs))
        if self._bias_slot is not None:
            gradients.append((self._bias_slot, single or Dense(outputs.sum(1))))
        return gradients


def run_all(layers: Sequence[native.Layer], x: Tensor) -> list[Tensor]:
    """The outputs of layers that follow each other."""
    kernels = _kernels_for(x)
    if kernels is not None and all(_worth_a_call(layer.weight) for layer in layers):
        outputs = kernels.affine(x, layers)
        if outputs is not None:
            return outputs
    if len(layers) > 1:
        return [x := run_all([layer], x)[0] for layer in layers]
    weight, bias, rectified = layers[0]
    output = F.linear(x, weight, bias)
    return [output.relu_() if rectified else output]


def back_through(steps: Sequence[tuple[Tensor, Tensor | None]], g: Tensor) -> list[Tensor]:
    """The gradients of layers' inputs, the last layer's first, from that of its output.

    Each step has a weight, and what the input was rectified to if it was: then the gradient is
    that of what it was before.
    """
    kernels = _kernels_for(g)
    if kernels is not None and all(_worth_a_call(weight) for weight, _ in steps):
        gradients = kernels.affine_back(g, steps)
        if gradients is not None:
            return gradients
    if len(steps) != 1:
        return [g := back_through([step], g)[0] for step in steps]
    weight, rectified = steps[0]
    gradient = g @ weight
    return [gradient if rectified is None else unrectified(gradient, rectified)]


def _worth_a_call(weight: Tensor) -> bool:
    return weight.numel() >= _WORTH_A_CALL


def _kernels_for(rows: Tensor) -> native.Library | None:
    """The compiled kernels, where nobody else is to see what torch is asked for."""
    if torch._C._len_torch_dispatch_stack() or peek_interpreter_stack() is not None:
        return None
    return None if is_legacy_batchedtensor(rows) else native.active()


def unrectified(g: Tensor, output: Tensor) -> Tensor:
    """The gradient of what was rectified to `output`."""
    gradient: Tensor = torch.ops.aten.threshold_backward(g, output, 0)
    return gradient
