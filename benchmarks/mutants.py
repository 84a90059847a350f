"""Mutation testing: how many small changes of the files that carry the promise do tests notice?

    python benchmarks/mutants.py [--each 50] [--seed 0] [--only tacit/privacy/rdp.py] [--again]

cosmic-ray's operators make the mutants. They are run here rather than by `cosmic-ray exec`, because
a forked process that has torch loaded saves four of five seconds per mutant. Results are kept in
docs/results/mutants.json as they come; a run that is stopped goes on where it was. Survivors are
judged by hand in benchmarks/mutation_suite/judged.json, and docs/mutation.md is written from both:
with --page nothing else is done.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from mutation_suite import page, running
from mutation_suite.mutants import Mutant, places, sample
from mutation_suite.targets import TARGETS

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results" / "mutants.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=70, help="most mutants of one file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(TARGETS), help="these files only")
    parser.add_argument("--again", action="store_true", help="run survivors again")
    parser.add_argument("--page", action="store_true", help="only write the page")
    chosen = parser.parse_args()
    stored: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    if not chosen.page:
        if stored.get("seed") != chosen.seed or stored["each"] > chosen.each:
            stored = {"seed": chosen.seed, "files": {}}
        stored["each"] = chosen.each  # a larger sample holds the smaller one
    for file in () if chosen.page else chosen.only:
        _run_file(file, chosen.each, chosen.seed, stored, chosen.again)
    (ROOT / "docs" / "mutation.md").write_text(
        page.written(stored, page.judged()), encoding="utf-8"
    )


def _run_file(file: str, most: int, seed: int, stored: dict[str, Any], again: bool) -> None:
    """Run the sampled mutants of a file that have no result yet, or that survived before."""
    source = (ROOT / file).read_text("utf-8")
    digest = hashlib.sha256(source.encode()).hexdigest()
    entry = stored["files"].setdefault(file, {})
    if entry.get("sha256") != digest:
        entry.clear()
        entry |= {"sha256": digest, "places": len(places(source)), "seconds": 0.0}
        entry |= {"killed": [], "timed_out": [], "survived": {}}
    done = {*entry["killed"], *entry["timed_out"], *(() if again else entry["survived"])}
    left = [mutant for mutant in sample(file, source, most, seed) if mutant.name not in done]
    if not left:
        return
    tests = TARGETS[file]
    with tempfile.TemporaryDirectory() as folder, running.workspace(ROOT, Path(folder)) as copy:
        normal = running.baseline(copy, file, tests)
        print(f"{file}: {len(left)} mutants, {normal:.1f} s without any", flush=True)
        for mutant in left:
            _keep(entry, mutant, *running.outcome(copy, mutant, tests, normal))
            RESULTS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def _keep(entry: dict[str, Any], mutant: Mutant, outcome: str, seconds: float) -> None:
    entry["seconds"] = round(entry["seconds"] + seconds, 1)
    entry["survived"].pop(mutant.name, None)
    if outcome == "survived":
        shown = {"line": mutant.line, "before": mutant.before, "after": mutant.after}
        entry["survived"][mutant.name] = shown
        now = time.strftime("%H:%M:%S")
        print(f"  {now} line {mutant.line}: {mutant.before} => {mutant.after}", flush=True)
    else:
        entry[outcome].append(mutant.name)


if __name__ == "__main__":
    main()
