"""Weights that only noise moves any more are fixed at their average (paper 003, section 3.4).

Everything here is a function of weights that were released step by step and of public scales of
noise, so by post-processing it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tacit.noise.gaussian import PrivateGradient


class Sparsifier:
    """Looks at each window of steps and fixes weights that moved no more than noise explains.

    A weight is fixed, at its average over the window, where it went less than `below` standard
    deviations of what the noise of the window's updates alone would have moved it. Fixed weights
    stay fixed: later updates, and their noise, pass them by.
    """

    def __init__(self, window: int, below: float, memory: dict[str, Tensor]) -> None:
        self._window = window
        self._below = below
        self._memory = memory

    @property
    def fixed(self) -> Tensor | None:
        """Which weights are fixed, in the order of the flat vector; None before the first step."""
        return self._memory.get("sparse.fixed")

    def after(
        self,
        parameters: Mapping[str, nn.Parameter],
        gradient: PrivateGradient,
        rate: float,
        step: int,
    ) -> None:
        """Put fixed weights back after an update, and see at a window's end which join them."""
        layout, memory = gradient.layout, self._memory
        flat = torch.cat([parameters[name].detach().flatten() for name in layout.names])
        if "sparse.fixed" not in memory:
            memory["sparse.fixed"] = torch.zeros(layout.size, dtype=torch.bool)
            memory["sparse.value"] = torch.zeros_like(flat)
            self._open_window(flat, len(layout.names))
        flat = torch.where(memory["sparse.fixed"], memory["sparse.value"], flat)
        memory["sparse.sum"] += flat
        memory["sparse.variance"] += (rate * torch.tensor(gradient.scales)).square()
        if (step + 1) % self._window == 0:
            flat = self._close_window(flat, layout.sizes)
        with torch.no_grad():
            for name, value in layout.views(flat).items():
                parameters[name].copy_(value)

    def _open_window(self, flat: Tensor, parameters: int) -> None:
        self._memory["sparse.start"] = flat.clone()
        self._memory["sparse.sum"] = torch.zeros_like(flat)
        self._memory["sparse.variance"] = torch.zeros(parameters)

    def _close_window(self, flat: Tensor, sizes: tuple[int, ...]) -> Tensor:
        memory = self._memory
        spread = memory["sparse.variance"].sqrt().repeat_interleave(torch.tensor(sizes))
        quiet = (flat - memory["sparse.start"]).abs() < self._below * spread
        new = quiet & ~memory["sparse.fixed"]
        memory["sparse.value"] = torch.where(
            new, memory["sparse.sum"] / self._window, memory["sparse.value"]
        )
        memory["sparse.fixed"] = memory["sparse.fixed"] | new
        flat = torch.where(memory["sparse.fixed"], memory["sparse.value"], flat)
        self._open_window(flat, len(sizes))
        return flat
