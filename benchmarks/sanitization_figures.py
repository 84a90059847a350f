"""Figures 4, 8, 11, 13 and 14 of paper 000 from runs of our own.

    python benchmarks/sanitization_figures.py --figures 4 8 14 --jobs 2 --data-dir DATA

Each finished run is kept in docs/results/sanitization-figures.json at once, so that an interrupted
sweep goes on where it stopped; a run is repeated when its recipe has changed. Figures and their
part of docs/results/sanitization.md are made from that file alone: `--figures` without a name only
draws again.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from accuracy import write_page
from accuracy_suite.stored import RESULTS
from sanitization_suite.charts import charts
from sanitization_suite.runs import FIGURES, add, measure, missing, stored


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figures", nargs="*", default=list(FIGURES), choices=list(FIGURES))
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once, a thread each")
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as pool:
        wanted = missing(arguments.figures, stored())
        runs = [pool.submit(measure, run, arguments.data_dir) for run in wanted]
        for run in as_completed(runs):
            row = run.result()
            add(row)
            seconds, accuracy = row["training_seconds"], row["evaluations"][-1][1]
            print(f"{row['run']}: {100 * accuracy:.2f} % in {seconds:.0f} s", flush=True)
    for chart in charts(stored()):
        (RESULTS / f"{chart.name}.svg").write_text(chart.svg(), "utf-8")
    write_page("sanitization")


if __name__ == "__main__":
    main()
