"""Noise beside plain updates: python -m clipping_suite.noise_speed PARAMETERS THREADS."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from clipping_suite.contestants.ours import native_available
from clipping_suite.machine import hold_to, tune_allocator
from tacit.clipping.contract import ClippedSum, Layout
from tacit.noise.gaussian import GaussianNoise
from tacit.noise.source import RandomSource

ALLOWED_UPDATES = 4
_REPEATS, _WARMUP = 9, 2


def measured(parameters: int) -> dict[str, Any]:
    """Seconds for the noise of so many parameters, and for a plain SGD update pass over them.

    Noise is what a step does with it: drawn, scaled, added to the clipped sum and divided.
    """
    layout = Layout(("all",), (torch.Size([parameters]),), (0,))
    total = torch.zeros(parameters)
    mechanism = GaussianNoise(RandomSource.from_entropy(), 1.0)
    weights = torch.zeros(parameters, requires_grad=True)
    weights.grad = torch.ones(parameters)
    optimizer = torch.optim.SGD([weights], lr=0.01)
    update = _median(optimizer.step)
    noise = _median(lambda: mechanism.privatise(ClippedSum(total, layout, (1.0,), (1.0,)), 0, 1.0))
    return {
        "native": native_available(),
        "parameters": parameters,
        "update_seconds": update,
        "noise_seconds": noise,
        "noise_in_updates": noise / update,
        "allowed_updates": ALLOWED_UPDATES,
    }


def _median(call: Callable[[], object]) -> float:
    times = []
    for number in range(_WARMUP + _REPEATS):
        start = time.perf_counter()
        call()
        if number >= _WARMUP:
            times.append(time.perf_counter() - start)
    return median(times)


if __name__ == "__main__":
    hold_to(int(sys.argv[2]))
    torch.set_num_threads(int(sys.argv[2]))
    tune_allocator()
    print(json.dumps(measured(int(sys.argv[1]))))
