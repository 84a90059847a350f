"""Models as fixed programs that compute each row by itself.

Nothing here looks at values to decide what to do: which functions run follows from the model and
from shapes alone. So a row's bits do not depend on what the other rows hold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tacit import native
from tacit.clipping.exact.sums import BagUse, LinearUse, Use
from tacit.clipping.layers.linear import back_through, run_all, unrectified
from tacit.errors import ModelError
from tacit.models.networks import TemperedSigmoid, WordWeights, words_of

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


class NotRowwiseError(ModelError):
    """A layer whose sums are not proven: its name in the model, and why."""

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(f"{layer or 'the model'}: {reason}")
        self.layer, self.reason = layer, reason


class Stage(ABC):
    """A part of a program; what it keeps of `run` is gone after `back`."""

    @abstractmethod
    def run(self, x: Tensor) -> Tensor:
        """The output, row by row."""

    @abstractmethod
    def back(self, g: Tensor, input_needed: bool) -> tuple[Tensor | None, list[Use]]:
        """The gradient of the input, and the uses of trainable parameters."""


class _Affine(NamedTuple):
    name: str
    layer: nn.Linear
    weight: str | None
    bias: str | None
    rectified: bool


class LinearStage(Stage):
    """Linear layers, each perhaps rectified, that follow each other."""

    def __init__(self, layers: Sequence[_Affine]) -> None:
        self._layers = tuple(layers)
        self._inputs: list[Tensor] = []
        self._output: Tensor | None = None

    def run(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.dtype != torch.float32:
            raise NotRowwiseError(
                self._layers[0].name,
                f"its input has {x.dim()} dimensions and type {x.dtype}; sums are proven for one"
                " float32 vector per record",
            )
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
        return outputs[-1]

    def back(self, g: Tensor, input_needed: bool) -> tuple[Tensor | None, list[Use]]:
        inputs, output = self._inputs, self._output
        self._inputs, self._output = [], None
        assert output is not None
        if self._layers[-1].rectified:
            g = unrectified(g, output)
        steps: list[tuple[Tensor, Tensor | None]] = []
        for place in range(len(self._layers) - 1, -1, -1):
            if place or input_needed:
                rectified = place > 0 and self._layers[place - 1].rectified
                weight = self._layers[place].layer.weight.detach()
                steps.append((weight, inputs[place] if rectified else None))
        gradients = [g, *back_through(steps, g)] if steps else [g]
        uses: list[Use] = [
            LinearUse(each.weight, each.bias, x, outputs)
            for each, x, outputs in zip(self._layers[::-1], inputs[::-1], gradients, strict=False)
            if each.weight is not None or each.bias is not None
        ]
        return gradients[-1] if input_needed else None, uses


class ElementwiseStage(Stage):
    """A module without parameters whose outputs each follow from one input."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._kept: tuple[Tensor, Tensor] | None = None

    def run(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            given = x.detach().requires_grad_(x.is_floating_point())
            in_place = getattr(self._module, "inplace", False)
            output: Tensor = self._module(given.clone() if in_place else given)
        self._kept = given, output
        return output.detach()

    def back(self, g: Tensor, input_needed: bool) -> tuple[Tensor | None, list[Use]]:
        assert self._kept is not None
        (given, output), self._kept = self._kept, None
        if not input_needed:
            return None, []
        return torch.autograd.grad(output, given, g)[0], []


class BagStage(Stage):
    """Rows of a table added up for each record, and divided by a function of its tokens alone."""

    def __init__(
        self, name: str, bag: nn.EmbeddingBag, table: str, words: WordWeights | None
    ) -> None:
        self._name = name
        self._bag, self._table, self._words = bag, table, words
        self._kept: tuple[Tensor, Tensor | None] | None = None

    def run(self, x: Tensor) -> Tensor:
        bag = self._bag
        if x.dim() != 2 or x.dtype != torch.int64:
            raise NotRowwiseError(self._name, "its input is not one row of int64 tokens per record")
        with torch.no_grad():
            total: Tensor = torch.nn.functional.embedding_bag(
                x, bag.weight, mode="sum", padding_idx=bag.padding_idx
            )
            if self._words is not None:
                divisor = words_of(x).sqrt()
            elif bag.mode == "mean":
                counted = torch.ones_like(x) if bag.padding_idx is None else x != bag.padding_idx
                divisor = counted.sum(1, keepdim=True).clamp_min(1).float()
            else:
                divisor = None
        self._kept = x, divisor
        return total if divisor is None else total / divisor

    def back(self, g: Tensor, input_needed: bool) -> tuple[Tensor | None, list[Use]]:
        assert self._kept is not None and not input_needed
        (tokens, divisor), self._kept = self._kept, None
        outputs = g if divisor is None else g / divisor
        bag = self._bag
        return None, [BagUse(self._table, tokens, bag.padding_idx, bag.num_embeddings, outputs)]


class Program:
    """Forward and backward pass of a model made of known row-wise layers.

    Guarantee: row r of the output, and row r of every use, are functions of row r of the input,
    of the weights, of public random numbers (dropout) and of the shape of the batch.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = tuple(stages)

    def run(self, x: Tensor) -> Tensor:
        """One row of scores for each row of the input."""
        for stage in self._stages:
            x = stage.run(x)
        return x

    def back(self, g: Tensor) -> list[Use]:
        """All uses of trainable parameters, from the gradient of the scores."""
        found: list[Use] = []
        gradient: Tensor | None = g
        for place in range(len(self._stages) - 1, -1, -1):
            assert gradient is not None
            gradient, uses = self._stages[place].back(gradient, self._trained_before(place))
            found += uses
            if gradient is None:
                break
        return found

    def _trained_before(self, place: int) -> bool:
        return any(not isinstance(s, ElementwiseStage) for s in self._stages[:place])


def program_of(model: nn.Module, trained: Mapping[str, Tensor]) -> Program:
    """The program of a model whose `trained` parameters get gradients.

    A `NotRowwiseError` names the first layer that is not known to compute rows by themselves.
    """
    names = {id(parameter): name for name, parameter in trained.items()}
    stages: list[Stage] = []
    pending: list[_Affine] = []
    reached: set[str] = set()

    def end() -> None:
        if pending:
            stages.append(LinearStage(pending))
            pending.clear()

    for name, module in _flat("", model):
        kind = type(module)
        if _watched(module):
            raise NotRowwiseError(name, "hooks may change what it computes; remove them")
        own = [names.get(id(p)) for p in module.parameters(recurse=True)]
        for parameter in own:
            if parameter in reached:
                raise NotRowwiseError(name, f"the parameter {parameter!r} is used twice")
        reached.update(parameter for parameter in own if parameter is not None)
        if isinstance(module, nn.Linear) and kind is nn.Linear:
            weight, bias = (
                None if p is None else names.get(id(p)) for p in (module.weight, module.bias)
            )
            pending.append(_Affine(name, module, weight, bias, rectified=False))
        elif kind is nn.ReLU and pending and not pending[-1].rectified:
            pending[-1] = pending[-1]._replace(rectified=True)
        elif kind in ELEMENTWISE or (kind is nn.Flatten and _keeps_rows(module)):
            end()
            stages.append(ElementwiseStage(module))
        elif (found := _bag(module)) is not None and not stages and not pending:
            bag, words = found
            table = names.get(id(bag.weight))
            if table is None:
                raise NotRowwiseError(name, "its table is frozen; train it, or use its results")
            stages.append(BagStage(name, bag, table, words))
        else:
            raise NotRowwiseError(name, f"{kind.__name__} is not among the layers with a proof")
    end()
    missing = sorted(set(trained) - reached)
    if missing:
        raise NotRowwiseError("", f"the parameter {missing[0]!r} belongs to no known layer")
    return Program(stages)


def _flat(name: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        return [(name, module)]
    if _watched(module):
        raise NotRowwiseError(name, "hooks may change what it computes; remove them")
    return [
        each
        for inner, child in module._modules.items()
        if child is not None
        for each in _flat(f"{name}.{inner}" if name else inner, child)
    ]


def _bag(module: nn.Module) -> tuple[nn.EmbeddingBag, WordWeights | None] | None:
    words = module if type(module) is WordWeights else None
    bag = words.embedding if words is not None else module
    if type(bag) is not nn.EmbeddingBag or bag.mode == "max" or bag.max_norm is not None:
        return None
    if bag.scale_grad_by_freq or bag.include_last_offset or _watched(bag):
        return None
    return bag, words


def _keeps_rows(module: nn.Module) -> bool:
    return isinstance(module, nn.Flatten) and module.start_dim == 1


def _watched(module: nn.Module) -> bool:
    return bool(
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )
