"""Time and memory of correlated noise per step, beside the DP-SGD step it goes into.

    python benchmarks/correlated_noise.py

LeNet-5, batch 500, 120 batches an epoch, ten epochs. Steps and noise are timed in turn, so that
both see the same machine; medians. Writes docs/results/correlated-noise.json and .md.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tacit import models, native
from tacit.clipping.engines import engine_for
from tacit.clipping.rules import Flat
from tacit.losses import cross_entropy
from tacit.noise.correlated import BandedStream, Memory, TreeStream
from tacit.noise.gaussian import GaussianNoise
from tacit.noise.source import RandomSource
from tacit.process_tuning import tune_process

RESULTS = Path(__file__).parent.parent / "docs" / "results"
BATCH, EPOCH, STEPS = 500, 120, 1200
ROUNDS, WARM_UP = 60, 140
PAGE = """# What correlated noise costs

LeNet-5 on records of the shape of MNIST, batch {batch}, {steps} steps of {epoch} an epoch.
"step" is the DP-SGD step with independent noise (median of {rounds}); the other rows are
correlated noise alone, drawn in turn with it (mean of {rounds}, as it differs from step to step),
once every band is in use. Memory is what stays between steps, in vectors of the model's size.
{threads} threads, compiled kernels {kernels}.

Made by `python benchmarks/correlated_noise.py`.

| what | time (ms) | part of a step | vectors kept | vectors by theory |
|---|---|---|---|---|
"""


def main() -> None:
    tune_process()
    torch.manual_seed(0)
    model = models.build("lenet5", (1, 28, 28), 10)
    engine = engine_for(model, Flat(1.0), "fast")
    size = engine.layout.size
    source = RandomSource.from_seed(0)
    batch = torch.randn(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))
    independent = GaussianNoise(source, 1.0)

    def private_step(step: int) -> None:
        independent.privatise(engine.clipped_sum(cross_entropy, [batch], 1), step, BATCH)

    memories: dict[str, Memory] = {name: {} for name in ("tree", "reduced", "restarted", "banded")}
    streams: dict[str, TreeStream | BandedStream] = {
        "tree": TreeStream(STEPS, size, source, memories["tree"], reduced=False),
        "reduced": TreeStream(STEPS, size, source, memories["reduced"]),
        "restarted": TreeStream(EPOCH, size, source, memories["restarted"], completion=True),
        "banded": BandedStream(EPOCH, size, source, memories["banded"]),
    }
    timed: dict[str, Callable[[int], object]] = {"step": private_step}
    nothing = torch.zeros(size, dtype=torch.float64)
    timed |= {name: partial(released, stream, nothing) for name, stream in streams.items()}
    kept = dict.fromkeys(timed, 0.0)
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for step in range(WARM_UP + ROUNDS):
        for name, act in timed.items():
            if name == "step" and step < WARM_UP - 5:
                continue
            started = time.perf_counter()
            act(step)
            if step >= WARM_UP:
                seconds[name].append(time.perf_counter() - started)
            memory = memories.get(name, {})
            kept[name] = max(kept[name], sum(t.numel() for t in memory.values()) / size)
    write(summary(seconds, kept))


def released(stream: TreeStream | BandedStream, sums: torch.Tensor, step: int) -> torch.Tensor:
    return stream.release(step, sums)


def summary(seconds: dict[str, list[float]], kept: dict[str, float]) -> dict[str, Any]:
    """Medians over the rounds; means for noise, as its cost differs from step to step."""
    step = statistics.median(seconds["step"])
    levels = (STEPS - 1).bit_length()
    theory = {"step": 0, "tree": 2 * levels + 1, "reduced": 2 * levels + 1}
    theory |= {"restarted": 2 * (EPOCH - 1).bit_length() + 3, "banded": EPOCH - 1 + 16}
    return {
        "threads": torch.get_num_threads(),
        "kernels": native.active() is not None,
        "rounds": ROUNDS,
        "batch": BATCH,
        "epoch": EPOCH,
        "steps": STEPS,
        "rows": [
            {
                "what": name,
                "milliseconds": 1e3 * (step if name == "step" else statistics.mean(values)),
                "part_of_a_step": (step if name == "step" else statistics.mean(values)) / step,
                "vectors_kept": kept[name],
                "vectors_by_theory_at_most": theory[name],
            }
            for name, values in seconds.items()
        ],
    }


def page(found: dict[str, Any]) -> str:
    """docs/results/correlated-noise.md from what was found."""
    lines = [
        f"| {row['what']} | {row['milliseconds']:.2f} | {100 * row['part_of_a_step']:.1f} % |"
        f" {row['vectors_kept']:g} | at most {row['vectors_by_theory_at_most']} |"
        for row in found["rows"]
    ]
    kernels = "in use" if found["kernels"] else "not in use"
    head = PAGE.format(**{**found, "kernels": kernels})
    return head + "\n".join(lines) + "\n"


def write(found: dict[str, Any]) -> None:
    """The JSON, and the page made from it."""
    (RESULTS / "correlated-noise.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    text = page(found)
    (RESULTS / "correlated-noise.md").write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
