"""Convolutions of one and two dimensions."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping.exact.stages.local import LocalStage
from tacit.clipping.exact.stages.stage import Stage, check_input
from tacit.clipping.exact.uses import DenseUse, Use
from tacit.clipping.layers.conv import Convolution
from tacit.clipping.layers.conv_direct import WriteOut, by_windows
from tacit.clipping.layers.conv_geometry import Geometry, Problem, spread
from tacit.clipping.layers.conv_native import (
    by_kernels,
    by_winograd,
    suits_kernels,
    suits_winograd,
)

_CHANNELS_INNERMOST = (3, 2, 0, 1)
"""Where outputs, channels, rows and columns are in what the compiled kernels write."""


def convolution_stages(
    name: str, layer: nn.Conv1d | nn.Conv2d, weight: str | None, bias: str | None
) -> list[Stage]:
    """A convolution, after a stage that pads where it is not done with zeros or not symmetric."""
    dims = len(layer.kernel_size)
    pads = _pads(layer)
    if layer.padding_mode == "zeros" and all(before == after for before, after in pads):
        padding = tuple(before for before, _ in pads)
        return [ConvolutionStage(name, layer, padding, weight, bias)]
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    around = [pad for pair in reversed(pads) for pad in pair]
    padded = LocalStage(name, partial(F.pad, pad=around, mode=mode), lambda n: n == dims + 2)
    return [padded, ConvolutionStage(name, layer, (0,) * dims, weight, bias)]


def _pads(layer: nn.Conv1d | nn.Conv2d) -> list[tuple[int, int]]:
    """Before and after each spatial dimension."""
    if layer.padding == "same":
        sizes = zip(layer.dilation, layer.kernel_size, strict=True)
        totals = [gap * (taps - 1) for gap, taps in sizes]
        return [(total // 2, total - total // 2) for total in totals]
    padding = 0 if isinstance(layer.padding, str) else layer.padding
    return [(pad, pad) for pad in spread(padding, len(layer.kernel_size))]


class ConvolutionStage(Stage):
    """A convolution padded with zeros. Lines are images of height one.

    Per-record gradients of the kernel are materialised.
    """

    def __init__(
        self,
        name: str,
        layer: nn.Conv1d | nn.Conv2d,
        padding: tuple[int, ...],
        weight: str | None,
        bias: str | None,
    ) -> None:
        self._name, self._layer = name, layer
        self._weight, self._bias = weight, bias
        self.trained = weight is not None or bias is not None
        self._lines = len(layer.kernel_size) == 1
        one, none = ((1,), (0,)) if self._lines else ((), ())
        self._geometry = Geometry(
            (*one, *layer.stride), (*none, *padding), (*one, *layer.dilation), layer.groups
        )
        self._kept: tuple[Convolution, Tensor] | None = None

    def run(self, x: Tensor) -> Tensor:
        dims = len(self._layer.kernel_size) + 2
        check_input(self._name, x, x.dim() == dims, f"channels of {dims - 2} dimensions")
        weight, bias = self._layer.weight.detach(), self._layer.bias
        operation = Convolution(
            self._planar(weight),
            *(None if bias is None else bias.detach(), self._geometry, None, (None, None)),
        )
        x = self._planar(x)
        output, _ = operation.run(x)
        self._kept = operation, x
        return output.squeeze(2) if self._lines else output

    def back(self, g: Tensor, input_needed: bool) -> tuple[Tensor | None, list[Use]]:
        assert self._kept is not None
        (operation, x), self._kept = self._kept, None
        g = self._planar(g)
        uses: list[Use] = []
        if self._weight is not None:
            uses.append(self._use(self._weight, x, g))
        if self._bias is not None:
            uses.append(DenseUse.of(self._bias, g.sum((2, 3))))
        gradient, _ = operation.back(x, (), g, input_needed, None)
        return gradient.squeeze(2) if gradient is not None and self._lines else gradient, uses

    def _use(self, name: str, x: Tensor, g: Tensor) -> DenseUse:
        kernel = tuple(self._planar(self._layer.weight).shape)
        problem = Problem(x, g, kernel, self._geometry, len(x))
        way = _way(problem)

        def compute(block: slice) -> Tensor:
            return way(problem.part(block.start, block.stop)).joined()[0]

        if way is by_windows:
            return DenseUse(name, len(x), kernel, (0, 1, 2, 3), compute)
        outputs, channels, high, wide = kernel
        shape = (high, wide, channels, outputs)
        return DenseUse(name, len(x), shape, _CHANNELS_INNERMOST, compute)

    def _planar(self, t: Tensor) -> Tensor:
        return t.unsqueeze(2) if self._lines else t


def _way(problem: Problem) -> WriteOut:
    """How gradients are written out; the shape and the compiled kernels that there are decide."""
    if suits_winograd(problem):
        return by_winograd
    return by_kernels if suits_kernels(problem) else by_windows
