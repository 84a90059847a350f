"""Torch functions that are made of other torch functions, opened for interception.

A function written in Python hands itself to whoever intercepts torch functions before it calls
others; once taken, it would run with interception off. Opened, it no longer asks.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F


def _opened(function: Any) -> Callable[..., Any]:
    def never(*_: Any) -> bool:
        return False

    tests = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    opened = FunctionType(
        function.__code__,
        {**function.__globals__, **dict.fromkeys(tests, never)},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    opened.__kwdefaults__ = function.__kwdefaults__
    return opened


multi_head_attention = _opened(F.multi_head_attention_forward)
"""Attention whose projections are linear layers like any other."""

gradients = _opened(torch.autograd.grad)
"""A backward pass in which checkpointed layers run forward again, intercepted as before."""
