"""The one place that steps between a user's model and torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from tacit.clipping.layers.axis import candidates
from tacit.clipping.layers.operation import Operation, Rule
from tacit.clipping.layers.recording import Recording
from tacit.clipping.layers.uses import Use
from tacit.clipping.layers.watching import moves_rows


class Replacement(Protocol):
    """Something that runs in the place of a module's own forward."""

    def begin(self, recording: Recording) -> Callable[[], None]:
        """Take the module's place; what is returned gives it back."""
        ...


class Interception:
    """Records every use of trainable parameters for as long as this context is open.

    Guarantee: on leaving, also by an exception, modules and parameters are what they were.
    """

    def __init__(
        self,
        recording: Recording,
        replacements: Iterable[Replacement],
        rules: Mapping[Callable[..., Any], Rule],
        rewrites: Mapping[Callable[..., Any], Callable[..., Any]],
        alone: Mapping[Callable[..., Any], Callable[..., Any]],
    ) -> None:
        self._recording = recording
        self._replacements = replacements
        self._mode = Interceptor(recording, rules, rewrites, alone)
        self._to_undo: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        try:
            for replacement in self._replacements:
                self._to_undo.append(replacement.begin(self._recording))
            self._mode.__enter__()  # type: ignore[no-untyped-call]
        except BaseException:
            self._undo()
            raise

    def __exit__(self, *error: Any) -> None:
        try:
            self._mode.__exit__(*error)  # type: ignore[no-untyped-call]
        finally:
            self._undo()

    def _undo(self) -> None:
        """The last first; all of them, whatever becomes of one."""
        if self._to_undo:
            try:
                self._to_undo.pop()()
            finally:
                self._undo()


class Interceptor(TorchFunctionMode):
    """Hands calls of torch functions that use trainable parameters to the layer rules.

    What no rule takes runs as it is, with an ordinary autograd edge to the parameter, which the
    engine finds afterwards: nothing can be missed in silence.
    """

    def __init__(
        self,
        recording: Recording,
        rules: Mapping[Callable[..., Any], Rule],
        rewrites: Mapping[Callable[..., Any], Callable[..., Any]],
        alone: Mapping[Callable[..., Any], Callable[..., Any]],
    ) -> None:
        super().__init__()
        self.recording = recording
        self._rules = rules
        self._rewrites = rewrites
        self._alone = alone

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.recording.inside_unit:
            return self._alone.get(func, func)(*args, **kwargs)
        if not self.recording.moved and moves_rows(func, self.recording.rows, args, kwargs):
            self.recording.moved = True
        rule = self._rules.get(func)
        rewrite = self._rewrites.get(func)
        if (rule or rewrite) and torch.is_grad_enabled():
            if rewrite is not None:
                with self:
                    output = rewrite(*args, **kwargs)
                if output is not NotImplemented:
                    return output
            output = self._through(rule, func, args, kwargs) if rule else None
            if output is not None:
                return output
        return func(*args, **kwargs)

    def _through(
        self, rule: Rule, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor | None:
        recording = self.recording
        found = rule(recording.slots, *args, **kwargs)
        if found is None:
            return None
        x, operation = found
        if torch.is_autocast_enabled(x.device.type) or peek_interpreter_stack() is not None:
            return None
        axes = candidates(operation.leading(x), recording.rows)
        use = recording.use(operation.slots, axes, x.dim()) if axes else None
        if use is None:
            return self._shared_lookup(x, operation, func, args, kwargs)
        if operation.better_intercepted(x):
            recording.better_intercepted = True
        # No functorch transform is at work here, so its part of `Function.apply` is passed by.
        output: Tensor = super(Function, _Through).apply(  # type: ignore[no-untyped-call]
            recording.anchor, x, operation, use
        )
        return output

    def _shared_lookup(
        self,
        x: Tensor,
        operation: Operation,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Tensor | None:
        output: Tensor = func(*args, **kwargs)
        lookup = operation.lookup(x, output)
        if lookup is not None:
            self.recording.slots.remember(lookup)
        return output


class DifferentiatedTwiceError(Exception):
    """The loss contains derivatives of the network, which only ordinary autograd can follow."""


class _Through(Function):
    """A layer whose backward pass yields input gradients and records the rest.

    The anchor is an empty tensor that needs a gradient: it puts every such layer on the way to
    something differentiable, also the first, whose input needs none. What is recorded must not
    know the graph: the graph knows the recording, and no collector would find that circle.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, operation: Operation, use: Use) -> Tensor:
        output, saved = operation.run(x)
        ctx.save_for_backward(x if operation.saves_input else x.new_empty(0), *saved)
        ctx.operation, ctx.use = operation, use
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor | None, None, None]:
        if torch.is_grad_enabled():
            raise DifferentiatedTwiceError
        x, *saved = ctx.saved_tensors
        with torch._C.DisableTorchFunction():
            input_gradient = ctx.use.back(
                ctx.operation, x.detach(), tuple(saved), g.resolve_neg(), ctx.needs_input_grad[1]
            )
        return None, input_gradient, None, None
