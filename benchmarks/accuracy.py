"""Accuracy of recipes at their proven ε: means over seeds, kept as JSON, shown as Markdown.

    python benchmarks/accuracy.py 002/table1-row1 002/table2-row1 --seeds 3 --data-dir DATA

Each finished run is added to docs/results/dpsgd.json at once, so that an interrupted sweep goes
on where it stopped; docs/results/dpsgd.md is made from that file alone.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

from tacit import config
from tacit.train import train

RESULTS = Path(__file__).parent.parent / "docs" / "results"
STORE = RESULTS / "dpsgd.json"
PUBLISHED = {
    "002/table1-row1": 92.22,
    "002/table1-row2": 93.17,
    "002/table1-row3": 94.13,
    "002/table2-row1": 93.63,
    "002/table2-row2": 95.38,
    "002/table2-row3": 96.61,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*", help="built-in recipes to run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()
    for name in arguments.recipes:
        for seed in range(arguments.seeds):
            if not any(r["recipe"] == name and r["seed"] == seed for r in stored()):
                add(measure(name, seed, arguments.data_dir))
    write_page()


def measure(name: str, seed: int, data_dir: Path | None) -> dict[str, Any]:
    """One run of a recipe, summed up."""
    recipe = config.load(name, {"run.seed": str(seed)})
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
        "claimed": certificate["claimed"]["epsilon"],
        "delta": certificate["guarantee"]["delta"],
        "noise": certificate["noise_multiplier"],
        "steps": certificate["steps"],
        "batch_size": certificate["expected_batch_size"],
        "training_seconds": metrics["training_seconds"],
        "inference_seconds": metrics["inference_seconds"],
        "machine": platform.machine(),
        "versions": certificate["versions"],
    }


def stored() -> list[dict[str, Any]]:
    return json.loads(STORE.read_text("utf-8")) if STORE.exists() else []


def add(row: dict[str, Any]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    rows = sorted([*stored(), row], key=lambda r: (r["recipe"], r["seed"]))
    STORE.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(row["recipe"], row["seed"], f"{100 * row['accuracy']:.2f} %", flush=True)


def write_page() -> None:
    """docs/results/dpsgd.md, every figure from the stored runs."""
    lines = [
        "# DP-SGD on MNIST",
        "",
        "Accuracy on the 10,000 test records, in percent, mean and standard deviation over seeds.",
        "Proven ε is the largest over the seeds, add-or-remove-one; δ = 1e-5. Only the setting of",
        "`002/table2-row1` lies on a grid that was searched, on 5,000 records held out of the training",
        "set, without a charge; the others were carried over from it and from a few trials of the MLP",
        "there, by judgement. That hold-out was every twelfth record, which is 3 to 4 points harder",
        "than the rest. No setting was changed after a look at the test set; besides this table it was",
        "looked at for two 5-epoch runs of `002/table2-row1`, to find out why the hold-out was harder,",
        "and by the real-data tests. Rows with one seed are not yet means. The wording of `tuned_on` in",
        "the recipes was corrected after these runs, so their digests differ from the stored ones.",
        "Times are for 2 cores without an accelerator, the machine shared with other work.",
        "",
        "Made by `python benchmarks/accuracy.py RECIPE… --seeds 3 --data-dir DATA` from",
        "[dpsgd.json](dpsgd.json). One row alone: `tacit train RECIPE --data-dir DATA`.",
        "",
        "| recipe | proven ε | claimed ε | seeds | accuracy | paper 002 | steps | noise | time |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    rows = stored()
    for name in sorted({row["recipe"] for row in rows}):
        runs = [row for row in rows if row["recipe"] == name]
        accuracy = [100 * run["accuracy"] for run in runs]
        spread = f" ± {statistics.stdev(accuracy):.2f}" if len(runs) > 1 else ""
        paper = f"{PUBLISHED[name]:.2f}" if name in PUBLISHED else "none"
        proven = max(run["proven"]["add-or-remove-one"] for run in runs)
        claimed = max(run["claimed"] for run in runs)
        minutes = statistics.mean(run["training_seconds"] for run in runs) / 60
        lines.append(
            f"| `{name}` | {proven:.4g} | {claimed:.4g} | {len(runs)} |"
            f" {statistics.mean(accuracy):.2f}{spread} | {paper} | {runs[0]['steps']} |"
            f" {runs[0]['noise']:.4g} | {minutes:.1f} min |"
        )
    (RESULTS / "dpsgd.md").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
