"""Convolutions and transposed convolutions of one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.layers.contributions import Dense
from tacit.clipping.layers.conv_compiled import Compiled
from tacit.clipping.layers.conv_geometry import Geometry, Problem, spread
from tacit.clipping.layers.kernels import Kernels
from tacit.clipping.layers.operation import (
    Gradients,
    Match,
    Operation,
    Placement,
    ReadMatch,
    Saved,
)
from tacit.clipping.layers.slots import Met, Slot, Slots


def convolution(
    parameters: Slots,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Match | None:
    """Rule for `torch.nn.functional.conv1d`, `conv2d` and `conv3d`."""
    slots = parameters.resolve(weight, bias)
    if slots is None or input.dim() != weight.dim():
        return None
    dims = weight.dim() - 2
    steps, gaps = spread(stride, dims), spread(dilation, dims)
    if padding == "same":
        totals = [gaps[d] * (weight.shape[2 + d] - 1) for d in range(dims)]
        if any(total % 2 for total in totals):
            pads = [p for total in reversed(totals) for p in (total // 2, total - total // 2)]
            input, totals = F.pad(input, pads), [0] * dims
        padding = [total // 2 for total in totals]
    elif isinstance(padding, str):
        padding = 0
    geometry = Geometry(steps, spread(padding, dims), gaps, groups)
    return input, Convolution(weight, bias, geometry, None, slots)


def transposed_convolution(
    parameters: Slots,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Match | None:
    """Rule for `conv_transpose1d`, `conv_transpose2d` and `conv_transpose3d`."""
    slots = parameters.resolve(weight, bias)
    if slots is None or input.dim() != weight.dim():
        return None
    dims = weight.dim() - 2
    steps, pads, gaps = spread(stride, dims), spread(padding, dims), spread(dilation, dims)
    geometry = Geometry(steps, pads, gaps, groups)
    return input, Convolution(weight, bias, geometry, spread(output_padding, dims), slots)


def read_convolution(parameters: Slots, node: Any, met: Sequence[Met | None]) -> ReadMatch | None:
    """Reader for every convolution and transposed convolution of a batch."""
    x, weight, bias = met
    if x is not None or weight is None or any(m is not None and m.transposed for m in met):
        return None
    kernels = parameters.parameters[weight.name]
    dims = kernels.dim() - 2
    given = (node._saved_stride, node._saved_padding, node._saved_dilation)
    stride, padding, dilation = (spread(each, dims) for each in given)
    geometry = Geometry(stride, padding, dilation, node._saved_groups)
    extra = spread(node._saved_output_padding, dims) if node._saved_transposed else None
    slots = [None if m is None else parameters.whole(m.name) for m in (weight, bias)]
    return "_saved_input", Convolution(kernels, None, geometry, extra, slots)


class Convolution(Operation):
    """A convolution, or with `extra` output padding a transposed one.

    A transposed convolution goes back through a convolution: to its kernels, the output's
    gradient is the image and the input is the gradient.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        extra: tuple[int, ...] | None,
        slots: Sequence[Slot | None],
    ) -> None:
        self._weight = weight.detach()
        self._bias = None if bias is None else bias.detach()
        self._geometry = geometry
        self._transposed = extra is not None
        self._extra = extra or (0,) * len(geometry.stride)
        self._weight_slot, self._bias_slot = slots
        self.slots = [slot for slot in slots if slot is not None]
        self.kept = weight.dim() - 1
        self._compiled = None if self._transposed else Compiled.of(self._weight, geometry)

    def better_intercepted(self, x: Tensor) -> bool:
        return self._compiled is not None and self._compiled.helps(x)

    def leading(self, x: Tensor) -> Sequence[int]:
        return x.shape[:1]

    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        geometry = self._geometry
        if self._compiled is not None:
            faster = self._compiled.convolved(x, self._bias)
            if faster is not None:
                return faster, ()
        output = torch.convolution(
            x,
            self._weight,
            self._bias,
            geometry.stride,
            geometry.padding,
            geometry.dilation,
            self._transposed,
            self._extra,
            geometry.groups,
        )
        return output, ()

    def back(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, at: Placement | None
    ) -> tuple[Tensor | None, Gradients]:
        input_gradient: Tensor | None = None
        if input_needed:
            input_gradient = self._input_gradient(x, g)
        if at is None:
            return input_gradient, []
        gradients: Gradients = []
        if self._weight_slot is not None:
            kernels = Kernels(self._problem(x, g, at), at.chooser)
            gradients.append((self._weight_slot, kernels))
        if self._bias_slot is not None:
            per_image = g.sum(tuple(range(2, g.dim())))
            gradients.append((self._bias_slot, Dense(at.summed(per_image, 1))))
        return input_gradient, gradients

    def _input_gradient(self, x: Tensor, g: Tensor) -> Tensor:
        if self._compiled is not None:
            faster = self._compiled.gradient(x, g)
            if faster is not None:
                return faster
        return self._geometry.backward(
            x, g, self._weight, (True, False), self._transposed, self._extra
        )[0]

    def _problem(self, x: Tensor, g: Tensor, at: Placement) -> Problem:
        kernel, geometry = self._weight.shape, self._geometry
        x, g = (at.arrange(t, self.kept).flatten(0, 1) for t in (x, g))
        if not self._transposed:
            return Problem(x, g, tuple(kernel), geometry, at.rows.records)
        if any(e >= s for e, s in zip(self._extra, geometry.stride, strict=True)):
            g, geometry = self._trimmed(x, g)
        return Problem(g, x, tuple(kernel), geometry, at.rows.records)

    def _trimmed(self, x: Tensor, g: Tensor) -> tuple[Tensor, Geometry]:
        """Exactly the pixels that windows cover, where the output padding adds whole strides."""
        geometry = self._geometry
        pads: list[int] = []
        for dim in reversed(range(len(geometry.stride))):
            steps = (x.shape[2 + dim] - 1) * geometry.stride[dim]
            covered = steps + geometry.dilation[dim] * (self._weight.shape[2 + dim] - 1) + 1
            left = geometry.padding[dim]
            pads += [left, covered - left - g.shape[2 + dim]]
        return F.pad(g, pads), replace(geometry, padding=(0,) * len(geometry.stride))
