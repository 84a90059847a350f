"""Linear layers that follow each other in an `nn.Sequential`, run as one node of the graph.

Between them nothing happens that anyone could see, so nothing needs to be intercepted call by call:
Python takes longer for that than small layers take to compute. Results have the same bits as those
of the layers one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import Function, forward_ad
from torch.nn.modules.module import _has_any_global_hook

from tacit.clipping.layers.axis import FIRST
from tacit.clipping.layers.interception import DifferentiatedTwiceError, Interceptor
from tacit.clipping.layers.linear import Linear, back_through, run_all, unrectified
from tacit.clipping.layers.recording import Recording
from tacit.clipping.layers.slots import Slots
from tacit.clipping.layers.uses import Use

_FEWEST_LAYERS = 2


class Link(NamedTuple):
    """A linear layer, and the rectifier of its outputs if there is one."""

    layer: nn.Module
    operation: Linear
    weight: Tensor
    bias: Tensor | None
    rectifier: nn.Module | None = None

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """In the order in which they run."""
        return (self.layer,) if self.rectifier is None else (self.layer, self.rectifier)

    def as_it_was(self) -> bool:
        """Whether the modules still are and hold what they did, and nobody watches them."""
        weight, bias, rectifier = self.weight, self.bias, self.rectifier
        held = self.layer._parameters
        if held.get("weight") is not weight or held.get("bias") is not bias:
            return False
        if not weight.requires_grad or not (bias is None or bias.requires_grad):
            return False
        if type(self.layer) is not nn.Linear or _hooked(self.layer):
            return False
        return rectifier is None or (type(rectifier) is nn.ReLU and not _hooked(rectifier))


class Chain:
    """Links that follow each other."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = links
        self.modules = [module for link in links for module in link.modules]
        self.slots = [slot for link in links for slot in link.operation.slots]
        self.layers = [link.operation.layer(rectified=link.rectifier is not None) for link in links]
        self._firsts = [link.operation.slots[0] for link in links]
        self._weight = links[0].weight

    def run(self, x: Any, recording: Recording) -> Tensor | None:
        """What the chain computes; None where it must not run as one.

        That is where somebody else sees what torch is asked for, or changes what it does, where
        the chain is not what it was, or x has not one row for each of the batch.
        """
        if type(x) is not Tensor or recording.inside_unit:
            return None
        with torch._C.DisableTorchFunction():
            if _disturbed() or not self._suits(x, recording):
                return None
            use = recording.use(self.slots, [FIRST], 2)
            assert use is not None
            # No functorch transform is at work here: its part of `Function.apply` is passed by.
            output: Tensor = super(Function, _Chained).apply(  # type: ignore[no-untyped-call]
                recording.anchor, x, self, use, recording
            )
            return output

    def steps_back(
        self, inputs: Sequence[Tensor], *, first: bool
    ) -> list[tuple[Tensor, Tensor | None]]:
        """The layers' weights, and their inputs where the layer before rectified them, from the
        last layer on; whether the first is among them is asked for."""
        steps: list[tuple[Tensor, Tensor | None]] = []
        for layer, before, x in zip(self.layers[1:], self.layers, inputs[1:], strict=False):
            steps.append((layer.weight, x if before.rectified else None))
        if first:
            steps.insert(0, (self._weight, None))
        return steps[::-1]

    def _suits(self, x: Tensor, recording: Recording) -> bool:
        weight = self._weight
        if x.layout is not torch.strided or x.shape != (recording.rows.count, weight.shape[1]):
            return False
        if x.dtype != weight.dtype or x.device != weight.device:
            return False
        if torch.is_autocast_enabled(x.device.type):
            return False
        if not recording.rows_known(self._firsts, 2):
            return False
        return all(link.as_it_was() for link in self.links)


class Chains:
    """The chains of one `nn.Sequential`, and what lies between them."""

    def __init__(self, module: nn.Sequential, parts: Sequence[nn.Module | Chain]) -> None:
        self.module = module
        self.parts = parts
        self._children = tuple(module._modules.values())
        chains = [part for part in parts if isinstance(part, Chain)]
        self.names = {slot.name for chain in chains for slot in chain.slots}

    def as_they_were(self) -> bool:
        """Whether the module has the children that it had."""
        now = self.module._modules.values()
        return len(now) == len(self._children) and all(map(_same, now, self._children))

    def begin(self, recording: Recording) -> Callable[[], None]:
        """Let chains run as one until what is returned is called: the module is of another class.

        That is seen by other threads, and kept by copies, but only a recording that knows the
        module finds chains in it.
        """
        recording.chains[self.module] = self
        if type(self.module) is nn.Sequential:
            object.__setattr__(self.module, "__class__", _Chaining)
        return self._give_back

    def _give_back(self) -> None:
        if type(self.module) is _Chaining:
            object.__setattr__(self.module, "__class__", nn.Sequential)


class _Chaining(nn.Sequential):
    """An `nn.Sequential` for the time of a pass."""

    def _get_name(self) -> str:
        return nn.Sequential.__name__

    def forward(self, input: Any) -> Any:
        chains = None if torch.compiler.is_compiling() else _chains_of(self)
        if chains is None:
            return nn.Sequential.forward(self, input)  # type: ignore[no-untyped-call]
        found, recording = chains
        for part in found.parts:
            if not isinstance(part, Chain):
                input = part(input)
                continue
            output = part.run(input, recording)
            if output is None:
                for module in part.modules:
                    input = module(input)
            else:
                input = output
        return input


def _chains_of(module: nn.Sequential) -> tuple[Chains, Recording] | None:
    """The chains of a module in the pass that this thread records, and nobody else sees."""
    if torch._C._len_torch_function_stack() != 1:
        return None
    mode = torch._C._get_function_stack_at(0)
    if not isinstance(mode, Interceptor):
        return None
    found = mode.recording.chains.get(module)
    return (found, mode.recording) if found is not None and found.as_they_were() else None


def _same(one: object, other: object) -> bool:
    return one is other


def chains_among(modules: Iterable[nn.Module], slots: Slots) -> list[Chains]:
    """All chains of trainable linear layers in modules of exactly the types known here."""
    found = []
    for module in modules:
        if type(module) is nn.Sequential:
            parts = _parts(module, slots)
            if any(isinstance(part, Chain) for part in parts):
                found.append(Chains(module, parts))
    return found


def _parts(sequence: nn.Sequential, slots: Slots) -> list[nn.Module | Chain]:
    parts: list[nn.Module | Chain] = []
    chain: list[Link] = []

    def end() -> None:
        if len(chain) >= _FEWEST_LAYERS:
            parts.append(Chain([*chain]))
        else:
            parts.extend(module for link in chain for module in link.modules)
        chain.clear()

    for module in sequence:
        link = _link(module, slots)
        if link is not None:
            names = {slot.name for slot in link.operation.slots}
            if any(slot.name in names for other in chain for slot in other.operation.slots):
                end()  # uses of one parameter are told apart by the order of calls
            chain.append(link)
        elif type(module) is nn.ReLU and chain and chain[-1].rectifier is None:
            chain[-1] = chain[-1]._replace(rectifier=module)
        else:
            end()
            parts.append(module)
    end()
    return parts


def _link(module: nn.Module, slots: Slots) -> Link | None:
    if type(module) is not nn.Linear:
        return None
    weight, bias = (module._parameters.get(name) for name in ("weight", "bias"))
    names = [None if p is None else slots.name_of(p) for p in (weight, bias)]
    if weight is None or names[0] is None or (bias is not None and names[1] is None):
        return None
    operation = Linear(weight, bias, *(None if n is None else slots.whole(n) for n in names))
    return Link(module, operation, weight, bias)


def _disturbed() -> bool:
    return (
        not torch.is_grad_enabled()
        or torch._C._len_torch_dispatch_stack() != 0
        or torch._C._get_tracing_state() is not None
        or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        or peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or _has_any_global_hook()
    )


def _hooked(module: nn.Module) -> bool:
    return bool(
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


class _Chained(Function):
    """As `_Through` of interception, for several layers.

    They share one use: each keeps rows apart, so records lie in all of them as in the first.
    What is saved are the inputs of all layers, and the result where that is rectified.
    """

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, x: Tensor, chain: Chain, use: Use, recording: Recording
    ) -> Tensor:
        outputs = run_all(chain.layers, x)
        given = outputs if chain.layers[-1].rectified else outputs[:-1]
        ctx.save_for_backward(x, *given)
        ctx.chain, ctx.use, ctx.recording = chain, use, recording
        return outputs[-1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise DifferentiatedTwiceError
        chain, given, needed = ctx.chain, ctx.saved_tensors, ctx.needs_input_grad[1]
        with torch._C.DisableTorchFunction():
            g = g.resolve_neg()
            if chain.layers[-1].rectified:
                g = unrectified(g, given[-1])
            placement = ctx.use.placement(g, 1)
            inputs = [x.detach() for x in given[: len(chain.layers)]]
            gradients = [g, *back_through(chain.steps_back(inputs, first=needed), g)]
            for link, x, g in zip(chain.links[::-1], inputs[::-1], gradients, strict=False):
                ctx.recording.add(link.operation.gradients(x, g, placement))
        return None, gradients[-1] if needed else None, None, None, None
