"""Linear layers, on one vector per record or on several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tacit import native
from tacit.clipping.exact.stages.stage import Stage, check_input
from tacit.clipping.exact.uses import DenseUse, LinearUse, Use
from tacit.clipping.layers.linear import back_through, run_all, unrectified


class Affine(NamedTuple):
    """A linear layer, perhaps rectified, and its trained parameters' names."""

    name: str
    layer: nn.Linear
    weight: str | None
    bias: str | None
    rectified: bool


class LinearStage(Stage):
    """Linear layers, each perhaps rectified, that follow each other.

    Vectors at several positions of a record are computed as if they were rows.
    """

    def __init__(self, layers: Sequence[Affine]) -> None:
        self._layers = tuple(layers)
        self._inputs: list[Tensor] = []
        self._output: Tensor | None = None
        self._leading: torch.Size = torch.Size()
        self.trained = any(each.weight or each.bias for each in layers)

    def run(self, x: Tensor) -> Tensor:
        check_input(self._layers[0].name, x, x.dim() >= 2, "vectors")
        self._leading = x.shape[:-1]
        x = x.flatten(0, -2)
        layers = [
            native.Layer(
                each.layer.weight.detach(),
                None if each.layer.bias is None else each.layer.bias.detach(),
                each.rectified,
            )
            for each in self._layers
        ]
        outputs = run_all(layers, x)
        self._inputs, self._output = [x, *outputs[:-1]], outputs[-1]
        output: Tensor = outputs[-1].unflatten(0, self._leading)
        return output

    def back(self, g: Tensor, input_needed: bool) -> tuple[Tensor | None, list[Use]]:
        inputs, output = self._inputs, self._output
        self._inputs, self._output = [], None
        assert output is not None
        g = g.flatten(0, -2)
        if self._layers[-1].rectified:
            g = unrectified(g, output)
        steps: list[tuple[Tensor, Tensor | None]] = []
        for place in range(len(self._layers) - 1, -1, -1):
            if place or input_needed:
                rectified = place > 0 and self._layers[place - 1].rectified
                weight = self._layers[place].layer.weight.detach()
                steps.append((weight, inputs[place] if rectified else None))
        gradients = [g, *back_through(steps, g)] if steps else [g]
        uses: list[Use] = []
        for each, x, outputs in zip(self._layers[::-1], inputs[::-1], gradients, strict=False):
            if each.weight is not None or each.bias is not None:
                uses += self._uses(each, x, outputs)
        return gradients[-1].unflatten(0, self._leading) if input_needed else None, uses

    def _uses(self, layer: Affine, inputs: Tensor, outputs: Tensor) -> list[Use]:
        if len(self._leading) == 1:
            return [LinearUse(layer.weight, layer.bias, inputs, outputs)]
        records = self._leading[0]
        x, g = (t.unflatten(0, (records, -1)) for t in (inputs, outputs))
        uses: list[Use] = []
        if layer.weight is not None:
            shape = (g.shape[2], x.shape[2])
            uses.append(
                DenseUse(
                    *(layer.weight, records, shape, (0, 1)),
                    lambda block: torch.bmm(g[block].mT, x[block]).flatten(1),
                )
            )
        if layer.bias is not None:
            uses.append(DenseUse.of(layer.bias, g.sum(1)))
        return uses
