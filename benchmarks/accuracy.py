"""Accuracy of recipes at their proven ε: means over seeds, kept as JSON, shown as Markdown.

    python benchmarks/accuracy.py dpsgd --seeds 3 --jobs 2 --data-dir DATA

Each finished run is added to docs/results/PAGE.json at once, so that an interrupted sweep goes on
where it stopped; a run is repeated when its recipe has changed. docs/results/PAGE.md is made from
that file and benchmarks/pages/PAGE.md alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from accuracy_suite.page import text_of
from accuracy_suite.stored import RESULTS, present_digest, recipe_of, stored

ROWS = range(1, 6)
BETTER = ("-banded", "-amplified")
TABLE_2 = ("dpsur", "dpsgd-br")
BENCHMARKS = ("mnist", "fashion-mnist", "cifar-10", "imdb")
SHORT = (
    *("short-mnist-low-noise", "short-mnist-high-noise", "short-cifar-bn", "short-cifar"),
    *(f"equal-mnist-batch-{rule}" for rule in ("flat", "adaptive", "grouped", "multiplied")),
    *(f"equal-mnist-individual-{rule}" for rule in ("flat", "adaptive", "grouped", "multiplied")),
    *("equal-cifar-batch-adaptive-bn", "equal-cifar-batch-adaptive"),
    *("equal-cifar-individual-flat", "equal-cifar-individual-multiplied"),
)
PAGES = {
    "baselines": [f"{name} --epsilon {epsilon}" for name in BENCHMARKS for epsilon in (1, 3, 8)],
    "dpsgd": [f"002/table{table}-row{row}" for table in (1, 2) for row in (1, 2, 3)]
    + ["001/mnist-ts"],
    "dpftrl": [f"002/table3-row{row}{kind}" for row in ROWS for kind in ("", *BETTER)]
    + [
        f"002/table4-row{row}{kind}" for row in (1, 2, 3) for kind in ("-dpsgd", "-dpftrl", *BETTER)
    ],
    "batch-clipping": [f"003/{name}" for name in SHORT],
    "selective": [
        f"001/{data}-{kind}"
        for data in ("mnist", "fashion-mnist")
        for kind in (
            *(f"eps{e}-{k}" for e in (1, 3) for k in (*TABLE_2, "buffer-only", "decay-only")),
            *(f"proven{e}-{k}" for e in (1, 3) for k in (*TABLE_2, "averaged", "summed")),
        )
    ],
    "sanitization": [
        f"000/{data}-{kind}"
        for data in ("mnist", "cifar-10")
        for kind in (
            "class-sums",
            "class-sums-scattering",
            "one-time",
            "paper-short",
            "joint",
            "dpsgd",
        )
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", choices=sorted(PAGES))
    parser.add_argument("--recipes", nargs="*", help="only these of the page's recipes")
    parser.add_argument("--seeds", type=int, default=3, help="0 only writes the page again")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once, a thread each")
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()
    names = arguments.recipes or PAGES[arguments.page]
    wanted = [(name, seed) for seed in range(arguments.seeds) for name in names]
    missing = [key for key in wanted if not is_stored(arguments.page, *key)]
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as pool:
        runs = [pool.submit(measure, name, seed, arguments.data_dir) for name, seed in missing]
        for run in as_completed(runs):
            add(arguments.page, run.result())
    write_page(arguments.page)


def measure(name: str, seed: int, data_dir: Path | None) -> dict[str, Any]:
    """One run of a recipe, summed up."""
    from tacit.train import train

    recipe = recipe_of(name, seed)
    with tempfile.TemporaryDirectory() as folder:
        result = train(recipe, data_dir=data_dir, out=Path(folder) / "run")
    certificate, metrics = result.certificate, result.metrics
    return {
        "recipe": name,
        "recipe_digest": recipe.digest(),
        "seed": seed,
        "accuracy": metrics["final"]["accuracy"],
        "evaluated_on": metrics["evaluated_on"],
        "proven": certificate["proven"],
        "claimed": _finite(certificate["claimed"]),
        "relation": certificate["guarantee"]["relation"] if certificate["guarantee"] else None,
        "delta": recipe.privacy.delta,
        "noise": certificate["noise_multiplier"],
        "steps": certificate["steps"],
        "batch_size": certificate["expected_batch_size"],
        "outcome": certificate.get("outcome") or {},
        "training_seconds": metrics["training_seconds"],
        "inference_seconds": metrics["inference_seconds"],
        "machine": platform.machine(),
        "versions": certificate["versions"],
    }


def _finite(claim: dict[str, Any] | None) -> float | None:
    """What a paper claims, where that is a number at all."""
    return claim["epsilon"] if claim and math.isfinite(claim["epsilon"]) else None


def is_stored(page: str, name: str, seed: int) -> bool:
    digest = present_digest(name, seed)
    return any(row["recipe_digest"] == digest for row in stored(page))


def add(page: str, row: dict[str, Any]) -> None:
    """Keep a run; one of an older form of the same recipe is replaced."""
    key = (row["recipe"], row["seed"])
    others = [r for r in stored(page) if (r["recipe"], r["seed"]) != key]
    rows = sorted([*others, row], key=lambda r: (r["recipe"], r["seed"]))
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    (RESULTS / f"{page}.json").write_text(text, "utf-8")
    print(*key, f"{100 * row['accuracy']:.2f} %", flush=True)


def write_page(page: str) -> None:
    """docs/results/PAGE.md, every figure from stored runs."""
    (RESULTS / f"{page}.md").write_text(text_of(page), "utf-8")


if __name__ == "__main__":
    main()
