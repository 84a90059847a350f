"""Multi-head attention: torch's own code, with its projections open to interception."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch.nn.functional as F


def _open(function: Any) -> Callable[..., Any]:
    """The function without its test for overrides, which would hand it back to us for ever."""

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


multi_head_attention = _open(F.multi_head_attention_forward)
