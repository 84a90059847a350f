"""Accuracy of recipes at their proven ε: means over seeds, kept as JSON, shown as Markdown.

    python benchmarks/accuracy.py dpsgd --seeds 3 --jobs 2 --data-dir DATA

Each finished run is added to docs/results/PAGE.json at once. Interrupted, the same command goes on
where it stopped, also within a run; a run is repeated when its recipe has changed. Pages are made
from these files and benchmarks/pages alone.
"""

from __future__ import annotations

from accuracy_suite.command import resumable, training_parser
from accuracy_suite.everything import write_all
from accuracy_suite.measure import measure

from tacit.papers.index import find

ROWS = range(1, 6)
BETTER = ("-banded", "-amplified")
TABLE_2 = ("dpsur", "dpsgd-br")
PEERS_OF_TABLE_2 = ("-ts", "-mean", "-lstm", "-hf-cnn")
BENCHMARKS = ("mnist", "fashion-mnist", "cifar-10", "imdb")
RULES = ("flat", "adaptive", "grouped", "multiplied")
PAPER_003 = (
    *("short-mnist-low-noise", "short-mnist-high-noise", "fig11-mnist", "fig12-mnist"),
    *("short-cifar-bn", "short-cifar", "short-cifar-bn-flat", "short-cifar-individual"),
    *(f"equal-mnist-batch-{rule}" for rule in RULES),
    *(f"equal-mnist-individual-{rule}" for rule in (*RULES, "multiplied-grouped")),
    *(f"equal-cifar-batch-{rule}" for rule in ("flat-bn", "adaptive-bn", "adaptive")),
    *(f"equal-cifar-individual-{rule}" for rule in ("flat", "grouped", "multiplied")),
    *("equal-cifar-individual-multiplied-grouped", "short-resnet18-bn"),
)
ADDITIONS = ("stopping", "adaptive", "adaptive-stopping")
SOUND = ("dpsgd", "class-sums-scattering", "joint", "one-time")
PAGES = {
    "baselines": [f"{name} --epsilon {epsilon}" for name in BENCHMARKS for epsilon in (1, 3, 8)],
    "dpsgd": [f"002/table{table}-row{row}" for table in (1, 2) for row in (1, 2, 3)]
    + ["001/mnist-ts", "002/mnist-plain"],
    "dpftrl": [f"002/table3-row{row}{kind}" for row in ROWS for kind in ("", *BETTER)]
    + [
        f"002/table4-row{row}{kind}" for row in (1, 2, 3) for kind in ("-dpsgd", "-dpftrl", *BETTER)
    ],
    "batch-clipping": [f"003/{name}" for name in PAPER_003],
    "selective": [
        *(
            f"001/{data}-{kind}{epsilon}-{method}"
            for data in BENCHMARKS
            for kind in ("eps", "proven")
            for epsilon in (1, 3)
            for method in TABLE_2
        ),
        *(
            f"001/{data}-proven{epsilon}-{choice}"
            for data in ("mnist", "fashion-mnist")
            for epsilon in (1, 3)
            for choice in ("averaged", "summed")
        ),
        *(f"001/{data}-eps1-untested" for data in ("mnist", "fashion-mnist")),
        *dict.fromkeys(
            row.command for figure in ("figure4", "figure7") for row in find(f"001/{figure}").rows
        ),
        *(row.command for row in find("001/table2").rows if row.recipe.endswith(PEERS_OF_TABLE_2)),
    ],
    "sanitization": [
        f"000/{data}-{kind}"
        for data in ("mnist", "cifar-10")
        for kind in (
            "class-sums",
            "class-sums-scattering",
            "dpsgd",
            "one-time",
            "one-time --epsilon 3",
            "joint",
            "paper",
            "paper-short",
        )
    ]
    + [f"000/cifar-10-paper{short}-{kind}" for short in ("", "-short") for kind in ADDITIONS]
    + [f"000/cifar-10-{kind} --epsilon 1.096" for kind in SOUND],
}


def main() -> None:
    parser = training_parser(__doc__, runs="build/accuracy")
    parser.add_argument("page", choices=sorted(PAGES))
    parser.add_argument("--recipes", nargs="*", help="only these of the page's recipes")
    parser.add_argument("--seeds", type=int, default=3, help="0 only writes the pages again")
    given = parser.parse_args()
    with resumable(write_all):
        measure(
            given.page,
            given.recipes or PAGES[given.page],
            given.seeds,
            jobs=given.jobs,
            data_dir=given.data_dir,
            runs=given.runs,
        )


if __name__ == "__main__":
    main()
