"""What benchmarks/accuracy.py needs before it can measure paper 003: a search, and sweeps of C.

    python benchmarks/batch_clipping_sweeps.py search --only 003/equal-mnist --data-dir DATA
    python benchmarks/batch_clipping_sweeps.py adopt
    python benchmarks/batch_clipping_sweeps.py clips --data-dir DATA

`search` tries clip norms and learning rates on held-out records, as many for every contestant;
`adopt` writes the best into the recipes; `clips` trains recipes at several clip norms and draws the
chart. Every run is stored at once in docs/results/trials, so that an interrupted command goes on
where it stopped. Nothing here sees the test set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accuracy_suite import clip_sweeps, held_out
from accuracy_suite.clip_sweeps import SWEEPS
from accuracy_suite.command import resumable, training_parser
from accuracy_suite.everything import write_all
from accuracy_suite.held_out import STARTS, Search
from accuracy_suite.measure import measure
from accuracy_suite.stored import RESULTS

import tacit

RECIPES = Path(tacit.__file__).parent / "recipes"


def main() -> None:
    parser = training_parser(__doc__, runs="build/accuracy")
    add = parser.add_argument
    add("what", choices=["search", "adopt", "clips"])
    add("--only", default="", help="recipes or sweeps whose names begin so")
    add("--trials", type=int, default=7, help="settings that a recipe may try")
    add("--seeds", type=int, default=1, help="runs at each clip norm of a sweep")
    given = parser.parse_args()
    recipes = [name for name in STARTS if name.startswith(given.only)]
    with resumable(write_all):
        if given.what == "search":
            search(recipes, given.trials, given.jobs, given.data_dir, given.runs)
        elif given.what == "adopt":
            adopt(recipes, RECIPES)
        else:
            names = [name for name in SWEEPS if name.startswith(given.only)]
            sweep(names, given.seeds, given.jobs, given.data_dir, given.runs)


def search(
    recipes: Sequence[str], trials: int, jobs: int, data_dir: Path | None, runs: Path
) -> None:
    """Let every recipe climb for so many trials, all of them side by side."""
    while wanted := [trial for one in searches(recipes) if (trial := one.wanted(trials))]:
        measure(held_out.PAGE, wanted, 1, jobs=jobs, data_dir=data_dir, runs=runs)
    for one in searches(recipes):
        clip, rate = one.best
        print(f"{one.recipe}: clip {clip:g}, rate {rate:g} after {len(one.found)} trials")


def searches(recipes: Sequence[str]) -> list[Search]:
    """The searches as far as they are stored."""
    trials = held_out.trials()
    return [Search(recipe, trials) for recipe in recipes]


def adopt(recipes: Sequence[str], folder: Path) -> None:
    """Write the best settings into the recipes that have been searched."""
    for search in searches(recipes):
        if search.found:
            held_out.write(search.recipe, held_out.adopted(search), folder)
            print(f"{search.recipe}: adopted")


def sweep(names: Sequence[str], seeds: int, jobs: int, data_dir: Path | None, runs: Path) -> None:
    """Train every point of the sweeps, and draw all that is stored."""
    points = [point for name in names for point in SWEEPS[name].names]
    measure(clip_sweeps.PAGE, points, seeds, jobs=jobs, data_dir=data_dir, runs=runs)
    clip_sweeps.draw(clip_sweeps.points(), RESULTS / clip_sweeps.CHART)


if __name__ == "__main__":
    main()
