"""The sum of a step while it is added up."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import torch
from torch import Tensor

from tacit.clipping.contract import Layout


class Totals:
    """A flat vector, and each parameter's part of it, which at first holds nothing, not even zeros.

    Kernels write to the vector itself; views of all parts are made when somebody asks for one.
    """

    def __init__(self, layout: Layout, dtype: torch.dtype, device: torch.device) -> None:
        self.vector = torch.empty(layout.size, dtype=dtype, device=device)
        self._layout = layout
        self._unwritten = set(layout.names)

    @cached_property
    def _views(self) -> dict[str, Tensor]:
        return self._layout.views(self.vector)

    def __getitem__(self, name: str) -> Tensor:
        return self._views[name]

    def start(self, name: str) -> int:
        """Where a parameter's part begins in the vector."""
        return self._layout.starts[name]

    def holds(self, name: str) -> bool:
        """Whether something was written to a parameter's part."""
        return name not in self._unwritten

    def written(self, names: Iterable[str]) -> None:
        """Say that something was."""
        self._unwritten.difference_update(names)

    def complete(self) -> Tensor:
        """The vector, with zeros where nothing was written."""
        for name in self._unwritten:
            self._views[name].zero_()
        self._unwritten.clear()
        return self.vector
