"""How long and how much memory a plan will take, from a dry run on random tensors."""

from __future__ import annotations

import math
import multiprocessing
import resource
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Forecast:
    """Measured on a few steps without any data, then multiplied out."""

    seconds_per_step: float
    seconds: float
    peak_bytes: int


def forecast(
    model: str,
    shape: tuple[int, ...],
    classes: int,
    batch_size: int,
    steps: int,
    *,
    micro_batch: int = 256,
    tokens: int = 0,
    set_size: int = 1,
) -> Forecast:
    """Run a few private steps in a process of their own, so that its memory can be read off.

    With `set_size` above one, mini-sets of so many records are clipped, not records.
    """
    what = (model, shape, classes, batch_size, micro_batch, tokens, set_size)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        each, peak = pool.apply(_measure, what)
    return Forecast(each, each * steps, peak)


def _measure(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    batch_size: int,
    micro_batch: int,
    tokens: int,
    set_size: int,
) -> tuple[float, int]:
    import torch

    from tacit import models
    from tacit.clipping.contract import ClippingEngine
    from tacit.clipping.engines import engine_for
    from tacit.clipping.mini_sets import MiniSetEngine
    from tacit.clipping.rules import Flat
    from tacit.losses import cross_entropy
    from tacit.models import batch_norm
    from tacit.noise.gaussian import GaussianNoise
    from tacit.noise.source import RandomSource
    from tacit.optim import PrivateOptimizer
    from tacit.process_tuning import tune_process

    tune_process()
    model = models.build(name, shape, classes, tokens=tokens)
    rows = min(batch_size, 4 * micro_batch)
    features = torch.randint(1, tokens, (rows, *shape)) if tokens else torch.randn(rows, *shape)
    labels = torch.randint(0, classes, (rows,))
    engine: ClippingEngine
    if set_size > 1:
        batch_norm.seal(model)
        engine, micro_batch = MiniSetEngine(model, Flat(1.0)), set_size
    else:
        engine = engine_for(model, Flat(1.0), "fast")
    noise = GaussianNoise(RandomSource.from_seed(0), 1.0)
    optimizer = PrivateOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    seconds = []
    for step in range(4):
        started = time.perf_counter()
        pieces = zip(features.split(micro_batch), labels.split(micro_batch), strict=True)
        clipped = engine.clipped_sum(cross_entropy, pieces, 1)
        optimizer.apply(noise.privatise(clipped, step, batch_size), step)
        seconds.append(time.perf_counter() - started)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return min(seconds[1:]) * math.ceil(batch_size) / rows, peak
