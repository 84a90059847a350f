"""docs/results/speed.md, every figure from the results file alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clipping_suite import figures
from clipping_suite.contestants import CONTESTANTS
from clipping_suite.figures import Json, Row
from clipping_suite.workloads import BEYOND

_TARGETS = (
    ("ours-torch", "torch only", 1.7, 1.35, 1.3, CONTESTANTS["ours-torch"].memory_aim or 0.0),
    ("ours-native", "native", 1.25, 1.1, 2.0, CONTESTANTS["ours-native"].memory_aim or 0.0),
)
_READING = (
    "What a private step costs beside its clipping is fixed: noise for every parameter, and some",
    "hundred microseconds of Python in which the other cores wait. The shorter the plain step, the",
    "more that weighs; the MLP's takes a few milliseconds, and without compiled kernels its noise",
    "a quarter of that: it comes from a ChaCha20 keystream, and takes torch some twenty passes.",
    "Peers draw theirs from torch's own generator, whose seed has 64 bits.",
)
_TRIED = {
    True: "Everyone first tries memory layouts and micro-batches, those that come close to the"
    " fastest once more side by side; the fastest setting that is right goes into the rounds (for"
    " tacit, which is to keep to a bound of memory as well, the fastest that does, unless it is"
    " more than a tenth slower).",
    False: "Only plain SGD tries memory layouts and micro-batches and goes on with the fastest; all"
    " others, ours included, run the whole batch as it comes.",
}


def page(results: Json, chart: str) -> str:
    """The whole page as Markdown."""
    rows = figures.all_rows(results)
    parts = [
        ["# Speed of private steps", ""],
        _method(results),
        [f"![Step times as multiples of the best plain SGD step]({chart})", ""],
        _targets([row for row in rows if row.workload not in BEYOND]),
        _beyond([row for row in rows if row.workload in BEYOND]),
        _overall(rows),
    ]
    parts += [_workload(workload) for workload in results["workloads"]]
    parts += [_extras(results.get("extras", {})), _machine(results)]
    return "\n".join(line for part in parts for line in part).rstrip() + "\n"


def _method(results: Json) -> list[str]:
    run = results["run"]
    return [
        f"Median time of whole training steps in float32 on {run['threads']} threads: for plain",
        "SGD forward, backward and update; for everyone else each record clipped, noise, update.",
        "Each contestant runs in a process of its own. In every round processes are new, and take",
        "short turns in changing order, so that what slows the machine down for some seconds slows",
        f"all down ({run['rounds']} rounds of {run['turns']} turns in the last command; one turn",
        f"where not all fit into memory together), at least {run['steps']} timed steps in a round;",
        f"{run['warmup']} steps warm a process up, and a turn begins with some more that do not",
        "count. Everyone has the same",
        "threads and the same allocator tuning (mallopt: M_MMAP_THRESHOLD and M_TRIM_THRESHOLD",
        f"raised; GLIBC_TUNABLES: no caches of small pieces). {_TRIED[run['every_setting']]}",
        "“Plain SGD, default” is the ordinary step",
        "without any of that; the best plain step is the faster of the two plain ones. When a",
        "setting is tried, its clipped sum without noise is compared with that of tacit in pure",
        "torch (for plain SGD, its gradient with our sum unclipped): “off by” is the largest",
        "difference relative to the largest entry. Memory is the peak resident size during timed",
        "steps above that after model and data were built; code that is read from its file when it",
        "is first called is left out.",
        "",
        "Workloads may come from several commands that keep what earlier ones measured (`--keep`);"
        f" the last was `{run['command']}`. All is in [speed.json](speed.json).",
        "",
    ]


def _targets(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| what must hold | aim | found | held |",
        "|---|---|---|---|",
    ]
    means = {each.contestant: each for each in figures.overall(rows)}
    for name, words, worst, mean, ahead, memory in _TARGETS:
        own = means.get(name)
        leads = figures.lead(rows, name)
        found: list[tuple[str, str, float, float | None, bool]] = [
            ("slowest workload, to best plain", "at most", worst, own.worst if own else None, True),
            ("geometric mean, to best plain", "at most", mean, own.mean if own else None, True),
            ("ahead of the fastest peer, least", "at least", ahead, _smallest(leads), False),
            (
                "memory, to plain default, most",
                "at most",
                memory,
                own.worst_memory if own else None,
                True,
            ),
        ]
        for what, sense, aim, value, below in found:
            held = "not measured"
            if value is not None:
                held = "yes" if (value <= aim if below else value >= aim) else "**no**"
            lines.append(f"| {words}: {what} | {sense} {aim:g} | {number(value)} | {held} |")
    return [*lines, "", *_READING, ""]


def _beyond(rows: Sequence[Row]) -> list[str]:
    """What was measured beside the workloads that the aims are about."""
    found = [row for row in rows if row.contestant == _TARGETS[1][0] and row.to_best is not None]
    if not found:
        return []
    (row,), (ahead,) = found, figures.lead(rows, _TARGETS[1][0]).values()
    return [
        "The CIFAR convnet of six convolutions is not one of the workloads of these aims, but a",
        "heavier one beside them, whose time is almost all convolutions. There tacit, native,",
        f"takes {number(row.to_best)} of the best plain step and is {number(ahead)} times as fast"
        " as the fastest peer.",
        "",
    ]


def _smallest(values: dict[str, float]) -> float | None:
    return min(values.values(), default=None)


def _overall(rows: Sequence[Row]) -> list[str]:
    lines = [
        "## All workloads together",
        "",
        "Ratios to the best plain step; the geometric mean is over the workloads finished.",
        "",
        "| contestant | workloads | geometric mean | slowest | most memory, to plain default |",
        "|---|---|---|---|---|",
    ]
    for each in figures.overall(rows):
        lines.append(
            f"| {each.title} | {each.workloads} | {number(each.mean)} | {number(each.worst)} |"
            f" {number(each.worst_memory)} |"
        )
    return [*lines, ""]


def _workload(workload: Json) -> list[str]:
    lines = [
        f"## {workload['title']}, batch {workload['batch']}",
        "",
        "| contestant | ms | to default | to best plain | to ours | peak MB |"
        " default allocator, ms | off by | setting | steps |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    notes = []
    for row in figures.rows_of(workload):
        if row.seconds is None:
            reason = row.reason.replace("|", "\\|")
            lines.append(f"| {row.title} | {row.status}: {reason} |" + " |" * 8)
            continue
        off = "—" if row.deviation is None else f"{row.deviation:.0e}"
        lines.append(
            f"| {row.title} | {milliseconds(row.seconds)} | {number(row.to_default)} |"
            f" {number(row.to_best)} | {number(row.to_ours)} | {number(row.memory, 0)} |"
            f" {milliseconds(row.untuned_seconds)} | {off} | {row.setting} | {row.repeats} |"
        )
    for contestant in workload["contestants"]:
        for tried in contestant["tried"]:
            if contestant["status"] == "ok" and tried["status"] != "ok":
                reason = tried["reason"]
                notes.append(f"- {contestant['title']}, {tried['setting']}: {reason}")
    if notes:
        lines += ["", "Settings left out:", "", *notes]
    if "command" in workload:
        lines += ["", f"Measured by `{workload['command']}`."]
    if "caveat" in workload:
        lines += ["", workload["caveat"]]
    return [*lines, ""]


def _extras(extras: Json) -> list[str]:
    lines: list[str] = []
    if noise := extras.get("noise"):
        lines += [
            "## Noise",
            "",
            f"For {noise[0]['parameters']:,} parameters: drawn, scaled, added to the sum and",
            f"divided. At most {noise[0]['allowed_updates']} plain SGD update passes over them are"
            " allowed.",
            "",
            "| contestant | ms | ms of an update pass | update passes |",
            "|---|---|---|---|",
        ]
        for each in noise:
            found = f"{each['status']} | |"
            if each["status"] == "ok":
                found = (
                    f"{milliseconds(each['noise_seconds'])} |"
                    f" {milliseconds(each['update_seconds'])} | {each['noise_in_updates']:.1f}"
                )
            lines.append(f"| {each['title']} | {found} |")
        lines.append("")
    if accounting := extras.get("accounting"):
        lines += _accounting(accounting)
    if large := extras.get("large_batches"):
        lines += [
            "## A batch of 16,384 in the memory of 64",
            "",
            "ResNet-18 with GroupNorm; peak memory over the whole process, warm-up included.",
            "",
            "| contestant | batch | micro-batches of | steps | peak MB | seconds per step |",
            "|---|---|---|---|---|---|",
        ]
        for each in large:
            if each["status"] == "ok":
                found = f"{number(each['memory'], 0)} | {number(each['seconds'])}"
            else:
                found = f"{each['status']}: {each['reason']} | "
            sizes = f"{each['batch']} | {each['piece']} | {each['steps']}"
            lines.append(f"| {each['title']} | {sizes} | {found} |")
        lines.append("")
    return lines


def _accounting(accounting: Json) -> list[str]:
    lines = [
        "## Accounting",
        "",
        "δ = 1e-5, sampling rate 0.01, one process, nothing cached. The fine PLD is that of",
        "dp-accounting on the grid named, itself never below the true ε.",
        "",
        "| what | seconds | allowed | ε | fine PLD | relative distance |",
        "|---|---|---|---|---|---|",
    ]
    titles = {
        "equal_steps": "10,000 equal steps, σ = 1",
        "noise_levels": "2,000 noise levels, σ from 2.0 to 0.8",
    }
    for key, title in titles.items():
        each = accounting[key]
        reference, distance = "not measured", "not measured"
        if each["reference"] is not None:
            reference = f"{each['reference']:.6f} (grid {each['reference_interval']:g})"
            distance = f"{each['relative_distance']:.1e}"
        lines.append(
            f"| {title} | {each['seconds']:.2f} | {each['allowed_seconds']:g} |"
            f" {each['epsilon']:.6f} | {reference} | {distance} |"
        )
    solving = accounting["solving"]
    lines.append(
        f"| solving for the noise (ε = 3, 20 epochs of MNIST) | {solving['seconds']:.2f} |"
        f" {solving['allowed_seconds']:g} | {solving['epsilon']:.6f} | | |"
    )
    return [*lines, ""]


def _machine(results: Json) -> list[str]:
    run = results["run"]
    lines = [
        "## Machine and versions",
        "",
        f"- {run['processor']}, {run['cores']} cores, {run['threads']} threads",
        f"- load before the run {run['load_before']:.2f} (1 is one core busy with other work)",
        f"- {run['date']}, {run['minutes']:.0f} minutes",
    ]
    for place, versions in run["versions"].items():
        named = ", ".join(f"{name} {value}" for name, value in sorted(versions.items()))
        lines.append(f"- {place}: {named or 'not run'}")
    return lines


def number(value: Any, digits: int = 2) -> str:
    """A figure, or a dash where there is none."""
    return "—" if value is None else f"{value:.{digits}f}"


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds, to about three digits."""
    if seconds is None:
        return "—"
    return f"{1e3 * seconds:.1f}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"
