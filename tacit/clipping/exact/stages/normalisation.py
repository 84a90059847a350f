"""Normalisation within records: group, instance, layer and RMS norm."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tacit.clipping.exact.stages.stage import Stage, check_input
from tacit.clipping.exact.uses import DenseUse, Use
from tacit.clipping.layers.layer_norm import LayerNorm, RMSNorm
from tacit.clipping.layers.normalisation import GroupNorm, RowNorm
from tacit.clipping.layers.operation import Saved

Normalisation = nn.GroupNorm | nn.InstanceNorm1d | nn.InstanceNorm2d | nn.LayerNorm | nn.RMSNorm
NORMALISATIONS = (nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.LayerNorm, nn.RMSNorm)


class NormalisationStage(Stage):
    """A normalisation whose statistics are those of one record, or of a part of it."""

    def __init__(
        self, name: str, layer: Normalisation, weight: str | None, bias: str | None
    ) -> None:
        self._name, self._layer = name, layer
        self._weight, self._bias = weight, bias
        self.trained = weight is not None or bias is not None
        self._kept: tuple[RowNorm, Tensor, Saved] | None = None

    def run(self, x: Tensor) -> Tensor:
        expected = "what the layer normalises and dimensions before it"
        check_input(self._name, x, self._keeps_rows(x), expected)
        operation = self._operation(x)
        output, saved = operation.run(x)
        self._kept = operation, x, saved
        return output

    def back(self, g: Tensor, input_needed: bool) -> tuple[Tensor | None, list[Use]]:
        assert self._kept is not None
        (operation, x, saved), self._kept = self._kept, None
        gradient, scale, shift = operation.differentiated(x, saved, g, input_needed, self.trained)
        own = ((self._weight, scale), (self._bias, shift))
        uses: list[Use] = [
            DenseUse.of(name, _summed(each, operation.kept))
            for name, each in own
            if name is not None and each is not None
        ]
        return gradient, uses

    def _keeps_rows(self, x: Tensor) -> bool:
        layer = self._layer
        if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
            return x.dim() > len(layer.normalized_shape)
        if isinstance(layer, nn.GroupNorm):
            return x.dim() >= 2
        dims = 1 if isinstance(layer, nn.InstanceNorm1d) else 2
        return x.dim() == dims + 2 and math.prod(x.shape[2:]) > 1

    def _operation(self, x: Tensor) -> RowNorm:
        layer = self._layer
        weight = None if layer.weight is None else layer.weight.detach()
        bias = getattr(layer, "bias", None)
        bias = None if bias is None else bias.detach()
        parameters = weight, bias, (None, None)
        if isinstance(layer, nn.RMSNorm):
            eps = torch.finfo(x.dtype).eps if layer.eps is None else layer.eps
            return RMSNorm(tuple(layer.normalized_shape), eps, *parameters)
        if isinstance(layer, nn.LayerNorm):
            return LayerNorm(tuple(layer.normalized_shape), layer.eps, *parameters)
        groups = layer.num_groups if isinstance(layer, nn.GroupNorm) else x.shape[1]
        return GroupNorm(groups, layer.eps, *parameters)


def _summed(gradients: Tensor, kept: int) -> Tensor:
    """Each record's gradients, those of its positions added up."""
    first = gradients.dim() - kept
    return gradients if first == 1 else gradients.flatten(1, first - 1).sum(1)
