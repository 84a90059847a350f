"""Modules without parameters that keep rows apart: elementwise, pooling, padding, reshaping."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tacit.clipping.exact.stages.stage import NotRowwiseError, Stage
from tacit.clipping.exact.uses import Use
from tacit.clipping.layers.selecting import max_pool2d, relu
from tacit.models.networks import TemperedSigmoid

ELEMENTWISE = (
    nn.Identity,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Softplus,
    nn.Tanh,
    nn.Sigmoid,
    nn.Dropout,
    TemperedSigmoid,
)
"""Modules whose outputs each follow from one input at the same place."""

SPATIAL: dict[type[nn.Module], int] = {
    nn.MaxPool1d: 1,
    nn.MaxPool2d: 2,
    nn.AvgPool1d: 1,
    nn.AvgPool2d: 2,
    nn.AdaptiveAvgPool1d: 1,
    nn.AdaptiveAvgPool2d: 2,
    nn.AdaptiveMaxPool1d: 1,
    nn.AdaptiveMaxPool2d: 2,
    nn.ZeroPad1d: 1,
    nn.ZeroPad2d: 2,
    nn.ConstantPad1d: 1,
    nn.ConstantPad2d: 2,
    nn.ReflectionPad1d: 1,
    nn.ReflectionPad2d: 2,
    nn.ReplicationPad1d: 1,
    nn.ReplicationPad2d: 2,
    nn.CircularPad1d: 1,
    nn.CircularPad2d: 2,
    nn.Dropout1d: 1,
    nn.Dropout2d: 2,
}
"""Modules that work within each channel of a record, and its spatial dimensions."""


class LocalStage(Stage):
    """A function without parameters whose output's row r follows from row r of its input.

    `keeps_rows` says for a number of dimensions whether it leaves the first one alone.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[Tensor], Tensor],
        keeps_rows: Callable[[int], bool],
        *,
        in_place: bool = False,
    ) -> None:
        self._name, self._function, self._keeps_rows = name, function, keeps_rows
        self._in_place = in_place
        self._kept: tuple[Tensor, Tensor] | None = None

    def run(self, x: Tensor) -> Tensor:
        if not self._keeps_rows(x.dim()):
            raise NotRowwiseError(
                self._name,
                f"on an input of {x.dim()} dimensions it is not known to leave the first one, that"
                " of the records, alone",
            )
        with torch.enable_grad():
            given = x.detach().requires_grad_(x.is_floating_point())
            output = self._function(given.clone() if self._in_place else given)
        self._kept = given, output
        return output.detach()

    def back(self, g: Tensor, input_needed: bool) -> tuple[Tensor | None, list[Use]]:
        assert self._kept is not None
        (given, output), self._kept = self._kept, None
        if not input_needed:
            return None, []
        return torch.autograd.grad(output, given, g)[0], []


def local_stage(name: str, module: nn.Module) -> LocalStage | None:
    """The stage of a module, None if it is not known to keep rows apart."""
    kind = type(module)
    in_place = bool(getattr(module, "inplace", False))
    if kind in ELEMENTWISE:
        function = _rectified(module) if kind is nn.ReLU else module
        return LocalStage(name, function, lambda dims: True, in_place=in_place)
    if kind in SPATIAL and not getattr(module, "return_indices", False):
        expected = SPATIAL[kind] + 2
        function = _largest(module) if isinstance(module, nn.MaxPool2d) else module
        return LocalStage(name, function, lambda dims: dims == expected, in_place=in_place)
    if kind in (nn.Flatten, nn.Unflatten):
        first = module.start_dim if isinstance(module, nn.Flatten) else module.dim
        if isinstance(first, int) and first != 0:
            return LocalStage(name, module, lambda dims: first % dims > 0)
    return None


def _rectified(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """The same numbers, with a bit kept for each where there are kernels."""

    def run(x: Tensor) -> Tensor:
        output: Tensor = relu(x)
        return module(x) if output is NotImplemented else output

    return run


def _largest(module: nn.MaxPool2d) -> Callable[[Tensor], Tensor]:
    """The same numbers, with a byte kept for each where there are kernels."""

    def run(x: Tensor) -> Tensor:
        output: Tensor = max_pool2d(
            x, module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode
        )
        return module(x) if output is NotImplemented else output

    return run
