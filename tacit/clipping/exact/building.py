"""Which program computes a model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from tacit.clipping.exact.program import Program, Residual
from tacit.clipping.exact.stages.bag import BagStage
from tacit.clipping.exact.stages.convolution import convolution_stages
from tacit.clipping.exact.stages.linear import Affine, LinearStage
from tacit.clipping.exact.stages.local import local_stage
from tacit.clipping.exact.stages.normalisation import NORMALISATIONS, NormalisationStage
from tacit.clipping.exact.stages.stage import NotRowwiseError, Stage
from tacit.models.networks import WordWeights
from tacit.models.normalised_networks import ResidualBlock


def program_of(model: nn.Module, trained: Mapping[str, Tensor]) -> Program:
    """The program of a model whose `trained` parameters get gradients.

    A `NotRowwiseError` names the first layer that is not known to compute rows by themselves.
    """
    reached: set[str] = set()
    names = {id(parameter): name for name, parameter in trained.items()}
    program = _Builder(names, reached).program({"": model})
    missing = sorted(set(trained) - reached)
    if missing:
        raise NotRowwiseError("", f"the parameter {missing[0]!r} belongs to no known layer")
    return program


class _Builder:
    """Puts stages together, and linear layers that follow each other into one.

    `names` are those of trained parameters by identity; those that are met go to `reached`.
    """

    def __init__(self, names: Mapping[int, str], reached: set[str]) -> None:
        self._names, self._reached = names, reached
        self._stages: list[Stage] = []
        self._linear: list[Affine] = []

    def program(self, modules: Mapping[str, nn.Module]) -> Program:
        """The program of modules that follow each other, by their names."""
        for name, module in modules.items():
            for inner, each in _flat(name, module):
                self._append(inner, each)
        self._end_linear()
        return Program(self._stages)

    def _append(self, name: str, module: nn.Module) -> None:
        if _watched(module):
            raise NotRowwiseError(name, "hooks may change what it computes; remove them")
        if type(module) is ResidualBlock:
            self._end_linear()
            self._stages += self._residual(name, module)
            return
        self._reach(name, module)
        if type(module) is nn.Linear:
            self._linear.append(Affine(name, module, *self._own(module), rectified=False))
        elif type(module) is nn.ReLU and self._linear and not self._linear[-1].rectified:
            self._linear[-1] = self._linear[-1]._replace(rectified=True)
        else:
            stages = self._known(name, module)
            self._end_linear()
            self._stages += stages

    def _residual(self, name: str, block: ResidualBlock) -> list[Stage]:
        def branch(*members: str) -> Program:
            modules = {f"{name}.{member}": getattr(block, member) for member in members}
            return _Builder(self._names, self._reached).program(modules)

        inner, shortcut = branch("conv1", "norm1", "relu", "conv2", "norm2"), branch("shortcut")
        return [Residual(inner, shortcut), branch("relu")]

    def _reach(self, name: str, module: nn.Module) -> None:
        for parameter in module.parameters():
            own = self._names.get(id(parameter))
            if own in self._reached:
                raise NotRowwiseError(name, f"the parameter {own!r} is used twice")
            if own is not None:
                self._reached.add(own)

    def _own(self, module: nn.Module) -> tuple[str | None, str | None]:
        """The names of a module's weight and bias, where they are trained."""
        named = (getattr(module, each, None) for each in ("weight", "bias"))
        weight, bias = (None if p is None else self._names.get(id(p)) for p in named)
        return weight, bias

    def _known(self, name: str, module: nn.Module) -> list[Stage]:
        local = local_stage(name, module)
        if local is not None:
            return [local]
        if type(module) in (nn.Conv1d, nn.Conv2d):
            assert isinstance(module, nn.Conv1d | nn.Conv2d)
            return convolution_stages(name, module, *self._own(module))
        if type(module) in NORMALISATIONS and not getattr(module, "track_running_stats", False):
            assert isinstance(module, NORMALISATIONS)
            return [NormalisationStage(name, module, *self._own(module))]
        bag = _bag(module)
        if bag is not None and not self._stages and not self._linear:
            table = self._names.get(id(bag[0].weight))
            if table is None:
                raise NotRowwiseError(name, "its table is frozen; train it, or use its results")
            return [BagStage(name, bag[0], table, bag[1])]
        kind = type(module).__name__
        raise NotRowwiseError(name, f"{kind} is not among the layers with a proof")

    def _end_linear(self) -> None:
        if self._linear:
            self._stages.append(LinearStage(self._linear))
            self._linear = []


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


def _watched(module: nn.Module) -> bool:
    return bool(
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )
