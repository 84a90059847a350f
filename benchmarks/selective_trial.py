"""What one trial of selective update costs, beside a step of DP-SGD and the forward passes.

    python benchmarks/selective_trial.py

Processor time of one thread on made-up records of the shape of MNIST and of its scattering
features, so that other work on the machine hardly matters. A trial should cost a private step and
two forward passes of the validation batch; they are also timed as one pass over both weights
(`torch.func.vmap`), to see whether that pays. Results go to docs/results/selective-trial.json.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit import models
from tacit.assemble import Facts, assemble
from tacit.config import Recipe
from tacit.data.batches import TensorRecords
from tacit.losses import cross_entropy
from tacit.process_tuning import tune_process
from tacit.rundir import RunDir
from tacit.steps import Steps

RECORDS, BATCH, VALIDATION, REPEATS = 6000, 1024, 256, 50
RESULT = Path(__file__).parent.parent / "docs" / "results" / "selective-trial.json"


def main() -> None:
    tune_process()  # as the command line does
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (RECORDS,), generator=generator)
    pixels = torch.randint(0, 256, (RECORDS, 1, 28, 28), generator=generator, dtype=torch.uint8)
    features = torch.randn(RECORDS, 81, 7, 7, generator=generator).half()
    answer = {
        "batch_size": BATCH,
        "validation_batch_size": VALIDATION,
        "tempered_cnn": timed("tempered-cnn", TensorRecords(pixels, labels)),
        "linear": timed("linear", TensorRecords(features, labels)),
    }
    text = json.dumps(answer, indent=1)
    RESULT.write_text(text + "\n", "utf-8")
    print(text)


def timed(name: str, records: TensorRecords) -> dict[str, Any]:
    """A trial beside its parts, on one network."""
    with tempfile.TemporaryDirectory() as folder:
        plain = steps_of(name, Path(folder) / "dpsgd", records, method="dpsgd")
        trial = steps_of(
            name, Path(folder) / "dpsur", records, method="dpsur", validation_batch_size=VALIDATION
        )
        indices = torch.randint(0, RECORDS, (VALIDATION,))
        batch = records.batch(indices)
        model = trial.state.model.eval()
        found = measured(
            {
                "private_step": lambda: plain.advance(cross_entropy),
                "trial": lambda: trial.advance(cross_entropy),
                "gathering": lambda: records.batch(indices),
                "forward_pass": lambda: forward(model, batch),
                "both_weights_in_one_pass": both(model, batch[0]),
            }
        )
    steps, passes, trials = found["private_step"], found["forward_pass"], found["trial"]
    ratios = [one / (s + 2 * f) for one, s, f in zip(trials, steps, passes, strict=True)]
    return {
        "milliseconds": {
            name: round(1000 * statistics.median(times), 2) for name, times in found.items()
        },
        "trial_over_step_and_two_passes": round(statistics.median(ratios), 4),
    }


def steps_of(name: str, path: Path, records: TensorRecords, **settings: object) -> Steps:
    recipe = Recipe().with_settings(
        noise=3.0, epsilon=None, epochs=10, batch_size=BATCH, micro_batch=512, seed=0, **settings
    )
    model = models.build(name, tuple(records.features.shape[1:]), 10)
    return assemble(model, records, recipe, RunDir.create(path), Facts())


def forward(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> None:
    """Up to the loss of every record."""
    with torch.no_grad():
        cross_entropy(model, batch)


def both(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """The same network with two sets of weights at once."""
    stacked = {name: torch.stack([p, p]).detach() for name, p in model.named_parameters()}

    def one(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        out: torch.Tensor = torch.func.functional_call(model, weights, (x,))
        return out

    def run() -> None:
        with torch.no_grad():
            torch.func.vmap(one)(stacked)

    return run


def measured(rows: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Processor times of each, taken in turns: step and trial see the same batch in each turn."""
    times: dict[str, list[float]] = {name: [] for name in rows}
    for repeat in range(REPEATS + 2):
        for name, work in rows.items():
            started = time.process_time()
            work()
            if repeat > 1:
                times[name].append(time.process_time() - started)
    return times


if __name__ == "__main__":
    main()
