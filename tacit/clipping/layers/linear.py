"""Linear layers: the gradient of a record is a sum of outer products, one per position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.layers.choice import Algorithm, Chooser, bucket
from tacit.clipping.layers.contributions import (
    Contribution,
    Dense,
    Mergeable,
    scaled,
    squared_rows,
    zeroed,
)
from tacit.clipping.layers.operation import Gradients, Match, Operation, Placement, Saved
from tacit.clipping.layers.slots import Slot, Slots


def linear(
    parameters: Slots, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Match | None:
    """Rule for `torch.nn.functional.linear`."""
    slots = parameters.resolve(weight, bias)
    if slots is None or weight.dim() != 2:
        return None
    return input, _Linear(weight.detach(), None if bias is None else bias.detach(), *slots)


def matmul(
    parameters: Slots, input: Tensor, other: Tensor | None = None, **unusual: object
) -> Match | None:
    """Rule for activations times a matrix of parameters."""
    if other is None or unusual or other.dim() != 2 or input.dim() < 2:
        return None
    if parameters.resolve(input) is not None:
        return None
    return linear(parameters, input, other.t())


class _Linear(Operation):
    kept = 1

    def __init__(
        self, weight: Tensor, bias: Tensor | None, weight_slot: Slot | None, bias_slot: Slot | None
    ) -> None:
        self._weight, self._bias = weight, bias
        self._weight_slot, self._bias_slot = weight_slot, bias_slot
        self.slots = [slot for slot in (weight_slot, bias_slot) if slot is not None]

    def leading(self, x: Tensor) -> Sequence[int]:
        return x.shape[:-1]

    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        return F.linear(x, self._weight, self._bias), ()

    def back(
        self, x: Tensor, saved: Saved, g: Tensor, input_needed: bool, at: Placement | None
    ) -> tuple[Tensor | None, Gradients]:
        input_gradient = g @ self._weight if input_needed else None
        if at is None:
            return input_gradient, []
        gradients: Gradients = []
        outputs = at.arrange(g, 1)
        if self._weight_slot is not None:
            pairs = OuterProducts(at.arrange(x, 1), outputs, at.chooser)
            gradients.append((self._weight_slot, pairs))
        if self._bias_slot is not None:
            gradients.append((self._bias_slot, Dense(at.summed(g, 1))))
        return input_gradient, gradients


class OuterProducts(Mergeable):
    """Record r's gradient is Σ over positions p of outputs[r, p] ⊗ inputs[r, p]."""

    def __init__(self, inputs: Tensor, outputs: Tensor, chooser: Chooser) -> None:
        self.inputs, self.outputs = inputs, outputs
        self._chooser = chooser
        self._written_out: Tensor | None = None

    def squared_norms(self) -> Tensor:
        records, positions, width_in = self.inputs.shape
        width_out = self.outputs.shape[2]
        if positions == 1:
            return squared_rows(self.inputs) * squared_rows(self.outputs)
        item = self.inputs.element_size()
        algorithm = self._chooser.pick(
            ("linear", bucket(records), positions, width_in, width_out, self.inputs.dtype),
            [
                Algorithm(
                    "gram",
                    records * positions**2 * (width_in + width_out),
                    2 * item * records * positions**2,
                    self._by_gram,
                ),
                Algorithm(
                    "written out",
                    records * positions * width_in * width_out,
                    item * records * width_in * width_out,
                    self._by_writing_out,
                ),
            ],
        )
        return algorithm.run()

    def _by_gram(self) -> Tensor:
        inputs = torch.bmm(self.inputs, self.inputs.mT)
        return inputs.mul_(torch.bmm(self.outputs, self.outputs.mT)).sum((1, 2)).clamp_min_(0)

    def _by_writing_out(self) -> Tensor:
        return squared_rows(self.per_record())

    def add_weighted(self, factors: Tensor, total: Tensor) -> None:
        inputs, outputs = self.inputs, self.outputs
        if inputs.shape[2] < outputs.shape[2]:
            inputs = scaled(inputs, factors)
        else:
            outputs = scaled(outputs, factors)
        total.addmm_(outputs.flatten(0, 1).t(), inputs.flatten(0, 1))

    def per_record(self) -> Tensor:
        return torch.bmm(self.outputs.mT, self.inputs)

    def silence(self, records: Tensor) -> None:
        self.inputs = zeroed(self.inputs, records)
        self.outputs = zeroed(self.outputs, records)

    def merged(self, others: Sequence[Contribution]) -> Contribution:
        alike = [self, *(other for other in others if isinstance(other, OuterProducts))]
        inputs = torch.cat([one.inputs for one in alike], 1)
        return OuterProducts(inputs, torch.cat([one.outputs for one in alike], 1), self._chooser)
