"""Everything a release holds beside trained weights: buffers, frozen parameters, extra state.

None of it gets noise, so none of it may change while private records are at hand.
Proof: docs/proofs/released_state.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tacit.errors import ModelError
from tacit.structure import Structure

ANY_STATE = "*"
"""Stands for all names where a method declares what it changes."""
_EXTRA = "_extra_state"
_WHY = "it would carry values of private records into the released weights without noise"
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class FixedState:
    """The initial bits of every buffer and frozen parameter of a model, and of its extra state.

    Guarantee: when `check` and `check_released` return, every value that goes out with the weights
    is a trained parameter, has the bits it had when this object was made, or is named in
    `changing`. A change raises ModelError, after the initial bits were put back in the model.

    Args:
        model: the model that is trained; parameters that require no gradient now are frozen.
        changing: names in the model's state dict that the method may change, and why each is
            public or noised; ANY_STATE as a name exempts everything.

    >>> model = nn.Linear(2, 2)
    >>> model.register_buffer("largest", torch.tensor(10.0))
    >>> fixed = FixedState(model)
    >>> model.largest.fill_(73.25)
    tensor(73.2500)
    >>> fixed.check()
    Traceback (most recent call last):
    tacit.errors.ModelError: buffer largest changed in training: ...
    >>> model.largest
    tensor(10.)
    """

    def __init__(self, model: nn.Module, changing: Mapping[str, str] | None = None) -> None:
        self._model = model
        self._changing = frozenset(changing or ())
        self._off = ANY_STATE in self._changing
        if self._off:
            return
        self._read_structure()
        everyone = dict(model.named_parameters(remove_duplicate=False))
        self._parameters = everyone
        self._trained = {name: p for name, p in everyone.items() if p.requires_grad}
        self._frozen = {name: p for name, p in everyone.items() if not p.requires_grad}
        self._initial = {n: _copied(t) for n, t in {**self._frozen, **self._buffers()}.items()}
        self._initial_state = {
            name: self._initial[name] if name in self._initial else _copied(value)
            for name, value in model.state_dict().items()
            if name not in self._trained
        }

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Check when the block ends; where it fails, put the initial bits back."""
        try:
            yield
        except BaseException:
            self.put_back()
            raise
        self.check()

    def check(self) -> None:
        """Raise ModelError where anything differs from its initial bits.

        Costs a comparison of all buffers and frozen parameters, and nothing where there are none.
        """
        if self._off:
            return
        fault = self._structural_fault() or self._value_fault()
        if not fault and self._custom:
            fault = self._state_fault(self._model.state_dict())
        if fault:
            self._refuse(fault)

    def check_released(self, weights: Mapping[str, Tensor]) -> None:
        """Raise ModelError where `weights`, about to be released, hold anything but trained
        parameters as they are in the model now, initial bits, and what the method declares."""
        if self._off:
            return
        fault = self._state_fault(weights)
        if fault:
            self._refuse(fault)

    def put_back(self) -> None:
        """Initial bits for all that must not change, so that a further run starts clean."""
        if self._off:
            return
        with torch.no_grad():
            for prefix, module in _named(self._model):
                for key, buffer in module._buffers.items():
                    initial = self._initial.get(prefix + key)
                    if prefix + key in self._changing or buffer is initial is None:
                        continue
                    module._buffers[key] = None if initial is None else initial.clone()
                for key in module._parameters:
                    module._parameters[key] = self._parameters.get(prefix + key)
            for name, parameter in self._frozen.items():
                parameter.data = self._initial[name].clone()

    def _refuse(self, fault: str) -> None:
        self.put_back()
        raise ModelError(
            f"{fault}: {_WHY}. Its initial value was put back, and nothing was released. Stop"
            " updating it in training, or remove it; running statistics of BatchNorm need method"
            " batch-clipping, which releases them with noise"
        )

    def _read_structure(self) -> None:
        self._structure = Structure(self._model)
        self._modules = list(_named(self._model))
        self._custom = any(_is_custom(module) for _, module in self._modules)

    def _buffers(self) -> dict[str, Tensor]:
        return {
            prefix + key: buffer
            for prefix, module in self._modules
            if module._buffers
            for key, buffer in module._buffers.items()
            if buffer is not None and prefix + key not in self._changing
        }

    def _structural_fault(self) -> str:
        """A parameter that was added, removed or replaced."""
        if self._structure.current() is self._structure:
            return ""
        self._read_structure()
        now = dict(self._model.named_parameters(remove_duplicate=False))
        for name in {**self._parameters, **now}:
            if now.get(name) is not self._parameters.get(name):
                return f"parameter {name} was {_what(name, self._parameters, now)} in training"
        return ""

    def _value_fault(self) -> str:
        now = {**self._frozen, **self._buffers()}
        if now.keys() != self._initial.keys():
            name = next(n for n in {**now, **self._initial} if (n in now) != (n in self._initial))
            return f"buffer {name} was {_what(name, self._initial, now)} in training"
        for name, value in now.items():
            if not same_bits(value, self._initial[name]):
                kind = "frozen parameter" if name in self._frozen else "buffer"
                return f"{kind} {name} changed in training"
        return ""

    def _state_fault(self, state: Mapping[str, Tensor]) -> str:
        """A key of a state dict, or its value, that is neither trained, initial nor declared."""
        for name in {**self._initial_state, **state}:
            if name in self._changing:
                continue
            if name in self._trained:
                value = state.get(name)
                if value is not None and not same_bits(value, self._trained[name]):
                    return f"the state dict holds another value than parameter {name} under its key"
            elif name not in state or name not in self._initial_state:
                return f"key {name} of the state dict was {_what(name, self._initial_state, state)}"
            elif not same_bits(state[name], self._initial_state[name]):
                kind = "extra state" if name.endswith(_EXTRA) else "key"
                return f"{kind} {name} of the state dict changed in training"
        return ""


def check_state(model: nn.Module) -> None:
    """Raise ModelError where a state dict holds other values than tensors, or a buffer or frozen
    parameter shares memory with a parameter that is trained, so that it cannot stay as it is."""
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ModelError(
                f"{name} of the state dict is a {type(value).__name__}; only tensors can be stored"
                " and compared: return a tensor from get_extra_state, or remove it"
            )
    trained = {n: _range(p) for n, p in model.named_parameters() if p.requires_grad}
    others = {n: p for n, p in model.named_parameters() if not p.requires_grad}
    for name, tensor in {**others, **dict(model.named_buffers())}.items():
        first, last = _range(tensor)
        for parameter, (start, end) in trained.items():
            if first < end and start < last:
                raise ModelError(
                    f"{name} shares memory with parameter {parameter}, which is trained, so it"
                    " would change with it; store a copy (tensor.detach().clone()), or train both"
                )


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same type, shape and bits; NaN equals itself, 0 is not −0.

    >>> same_bits(torch.tensor([float("nan"), 0.0]), torch.tensor([float("nan"), 0.0]))
    True
    >>> same_bits(torch.tensor(0.0), torch.tensor(-0.0))
    False
    """
    if one.dtype != other.dtype or one.shape != other.shape or one.layout != other.layout:
        return False
    if one.layout is not torch.strided:
        pairs = zip(_parts(one), _parts(other), strict=True)
        return all(same_bits(part, like) for part, like in pairs)
    if one.is_complex():
        one, other = torch.view_as_real(one.detach()), torch.view_as_real(other.detach())
    if one.is_floating_point():
        kind = _INTEGERS[one.element_size()]
        one, other = one.detach().view(kind), other.detach().view(kind)
    return torch.equal(one, other)


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """What a sparse tensor is made of."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        yield f"{name}." if name else "", module


def _is_custom(module: nn.Module) -> bool:
    """Whether a state dict may hold more of a module than its parameters and buffers."""
    kind = type(module)
    return bool(
        kind.get_extra_state is not nn.Module.get_extra_state
        or kind.state_dict is not nn.Module.state_dict
        or kind._save_to_state_dict is not nn.Module._save_to_state_dict
        or module._state_dict_hooks
        or module._state_dict_pre_hooks
        or "state_dict" in module.__dict__
    )


def _what(name: str, before: Mapping[str, object], now: Mapping[str, object]) -> str:
    if name not in before:
        return "added"
    return "replaced" if name in now else "removed"


def _range(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor's numbers lie in memory; nowhere for one that has none of its own."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return 0, 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()
