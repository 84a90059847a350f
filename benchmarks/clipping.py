"""Private steps of tacit beside plain SGD and other libraries: time, memory, exactness.

    python benchmarks/clipping.py --peer-python PEERS/bin/python --fastdp FASTDP --large --fine

runs everything and writes docs/results/speed.json, speed.md and speed.svg. `--quick` is what
`make bench` runs; `--page` makes page and chart again from a results file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
import tempfile
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from clipping_suite import extras, table
from clipping_suite.chart import draw
from clipping_suite.contestants import CONTESTANTS
from clipping_suite.machine import processor
from clipping_suite.page import page
from clipping_suite.processes import Environment
from clipping_suite.runner import Plan, Runner
from clipping_suite.workloads import QUICK, WORKLOADS, named
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
Json = dict[str, Any]
_QUICK_CONTESTANTS = (
    "plain-default",
    "plain",
    "ours-torch",
    "ours-native",
    "opacus-hooks",
    "opacus-ghost",
    "torch-func",
    "jax",
    "fastdp-mixopt",
)
_QUICK_MINUTES = 4.6
_QUICK_TIME_LIMIT = 60.0


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--workloads", nargs="*", choices=list(WORKLOADS), metavar="NAME", help="none: extras only")
    add("--contestants", nargs="+", choices=list(CONTESTANTS), metavar="NAME")
    add("--peer-python", default=sys.executable, help="Python of the peers' environment")
    add("--fastdp", type=Path, help="a checkout of awslabs/fast-differential-privacy")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--rounds", type=int, default=3)
    add("--turns", type=int, default=8, help="turns of a process in every round")
    add("--steps", type=int, default=3, help="timed steps of a process, at least")
    add("--seconds", type=float, default=2.0, help="for which a process may take more of them")
    add("--longest-step", type=float, default=30.0, help="seconds after which a peer is given up")
    add("--time-limit", type=float, default=900.0, help="seconds for one process")
    add("--tuned-only", action="store_true", help="without the default allocator beside the tuned")
    add("--large", action="store_true", help="also the batch of 16,384 (about ten minutes)")
    add("--fine", action="store_true", help="also the slow reference of the accountant")
    add("--no-extras", action="store_true", help="without noise and accounting, as --quick")
    add("--quick", action="store_true", help="a few workloads and peers in five minutes")
    add("--out", type=Path, help="folder of the results; docs/results unless --quick")
    add("--keep", action="store_true", help="keep stored results of what is not measured now")
    add("--page", action="store_true", help="only make the page and chart from speed.json")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    os.environ["TACIT_NATIVE"] = "0"
    options = parsed(arguments)
    out = options.out or ROOT / ("build/bench" if options.quick else "docs/results")
    out.mkdir(parents=True, exist_ok=True)
    if not options.page:
        measure(options, arguments, out)
    write_page(out)


def planned(options: argparse.Namespace) -> Plan:
    """How much the options ask for."""
    plan = Plan(
        contestants=tuple(options.contestants or CONTESTANTS),
        rounds=options.rounds,
        turns=options.turns,
        seconds=options.seconds,
        steps=options.steps,
        threads=options.threads,
        longest_step=options.longest_step,
        default_allocator=not options.tuned_only,
    )
    if not options.quick:
        return plan
    return replace(
        plan,
        contestants=tuple(options.contestants or _QUICK_CONTESTANTS),
        rounds=2,
        turns=4,
        steps=4,
        seconds=0.6,
        every_setting=False,
        default_allocator=False,
    )


def measure(options: argparse.Namespace, arguments: list[str], out: Path) -> None:
    """Run what the options ask for; results are stored after every workload."""
    console = Console() if sys.stdout.isatty() else Console(width=140)
    start, load = time.monotonic(), os.getloadavg()[0]
    if load > 0.5:
        console.print(f"[yellow]the load is {load:.2f}: other work disturbs the timings[/yellow]")
    plan = planned(options)
    command = shlex.join(["python", "benchmarks/clipping.py", *neutral(arguments)])
    everything = list(QUICK if options.quick else WORKLOADS)
    names = everything if options.workloads is None else options.workloads
    limit = min(options.time_limit, _QUICK_TIME_LIMIT) if options.quick else options.time_limit
    kept = read(out) if options.keep else {"workloads": [], "extras": {}}
    measured = {each["name"]: each for each in kept["workloads"]}
    others: Json = kept["extras"]
    known: Json = kept.get("run", {}).get("versions", {})
    with tempfile.TemporaryDirectory() as folder:
        where = Environment(Path(folder), options.peer_python, options.fastdp, limit)
        runner = Runner(plan, where, lambda words: console.print(f"[dim]{words}[/dim]"))

        def store() -> Json:
            results = {
                "run": {
                    "command": command,
                    "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
                    "minutes": (time.monotonic() - start) / 60,
                    "load_before": load,
                    "processor": processor(),
                    "cores": os.cpu_count(),
                    "threads": plan.threads,
                    "rounds": plan.rounds,
                    "turns": plan.turns,
                    "steps": plan.steps,
                    "warmup": plan.warmup,
                    "every_setting": plan.every_setting,
                    "versions": {
                        who: v or known.get(who, {}) for who, v in runner.versions.items()
                    },
                },
                "workloads": [measured[name] for name in WORKLOADS if name in measured],
                "extras": others,
            }
            text = json.dumps(results, indent=1, ensure_ascii=False)
            (out / "speed.json").write_text(text + "\n", "utf-8")
            return results

        stop = start + 60 * _QUICK_MINUTES if options.quick else math.inf
        for place, name in enumerate(names):
            share = max(0.0, stop - time.monotonic()) / (len(names) - place)
            measured[name] = {**runner.measure(named(name), share), "command": command}
            table.show(measured[name], console)
            store()
        if not (options.no_extras or options.quick):
            others["noise"] = extras.noise(plan.threads)
            others["accounting"] = extras.accounting(options.fine)
        if options.large:
            store()
            others["large_batches"] = extras.large_batches(where, options.threads)
        table.show_overall(store(), console)


def neutral(arguments: list[str]) -> list[str]:
    """The arguments with paths of this machine replaced by names."""
    names = {"--peer-python": "PEERS/bin/python", "--fastdp": "FASTDP", "--out": "OUT"}
    shown = list(arguments)
    for place, argument in enumerate(arguments[:-1]):
        if argument in names:
            shown[place + 1] = names[argument]
    return shown


def read(out: Path) -> Json:
    """The results stored in a folder."""
    results: Json = json.loads((out / "speed.json").read_text("utf-8"))
    return results


def write_page(out: Path) -> None:
    """Page and chart from the results file alone."""
    results = read(out)
    draw(results, out / "speed.svg")
    (out / "speed.md").write_text(page(results, "speed.svg"), "utf-8")
    Console().print(f"{out / 'speed.md'} and speed.svg are made from speed.json")


if __name__ == "__main__":
    main(sys.argv[1:])
