"""Running a model more than once without leaving a trace, and comparing what it computes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tacit.structure import Structure


class World:
    """Random states and buffers as they were before a forward pass.

    Without `buffers` only random states can be put back.
    """

    def __init__(self, structure: Structure, *, buffers: bool = True) -> None:
        self._structure = structure
        held = structure.buffers() if buffers else []
        self._buffers = [(buffer, buffer.clone(), buffer._version) for buffer in held]
        self._random = torch.get_rng_state()
        self._elsewhere = [
            (d, torch.get_device_module(d).get_rng_state(d)) for d in structure.accelerators
        ]

    @property
    def buffers_changed(self) -> bool:
        """Whether anybody has written to a buffer since, or replaced one."""
        now = self._structure.buffers()
        return len(now) != len(self._buffers) or any(
            buffer is not before or buffer._version != version
            for buffer, (before, _, version) in zip(now, self._buffers, strict=True)
        )

    @property
    def random_numbers_drawn(self) -> bool:
        """Whether anybody has drawn random numbers since."""
        return not torch.equal(self._random, torch.get_rng_state()) or any(
            not torch.equal(state, torch.get_device_module(device).get_rng_state(device))
            for device, state in self._elsewhere
        )

    def restore(self) -> None:
        """Put everything back."""
        torch.set_rng_state(self._random)
        for device, state in self._elsewhere:
            torch.get_device_module(device).set_rng_state(state, device)
        with torch.no_grad():
            for buffer, value, _ in self._buffers:
                if not torch.equal(buffer, value):  # a write alone would upset autograd
                    buffer.copy_(value)


def equal_up_to_rounding(one: Tensor, other: Tensor, *, of_units: bool = False) -> bool:
    """Whether two results differ by no more than another order of summation explains.

    `of_units`: they are differences of values of about one, like losses, and as inexact as these.
    """
    if not other.is_floating_point() or not other.numel():
        return True
    precisions = [torch.finfo(t.dtype).eps for t in (one, other) if t.is_floating_point()]
    tolerance = max(2e-3, math.sqrt(max(precisions)))
    scale = float(other.abs().nan_to_num(0.0, 0.0, 0.0).max())
    least = 32 * max(precisions) if of_units else 0.0
    return torch.allclose(
        one.double(),
        other.double(),
        rtol=tolerance,
        atol=max(tolerance * scale, least),
        equal_nan=True,
    )
