"""Audits of methods, planted faults and papers: kept as JSON, shown as Markdown.

    python benchmarks/audits.py --data-dir DATA

Every finished audit is added to docs/results/audit.json at once; an audit whose command has changed
is done again. docs/results/audit.md is made from that file and benchmarks/pages/audit.md alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tacit.report import values

RESULTS = Path(__file__).parent.parent / "docs" / "results"
TEMPLATE = Path(__file__).parent / "pages" / "audit.md"
Json = dict[str, Any]
_SIX = (
    "loss-threshold",
    "shadow-models",
    "partial-gradients",
    "lira-offline",
    "lira-online",
    "rmia",
)
_TACIT = "from tacit.cli import main; main()"
_MNIST_SIZE = (
    "--set privacy.epsilon=4 --set training.batch_size=500 --set training.epochs=10 --runs 3"
)
_SMALL_CIFAR = "--pairs 1000 --shadows 4 --seed 1" + "".join(f" --attack {name}" for name in _SIX)
_TRIALS = (
    "--set privacy.epsilon=4 --set privacy.noise=4 --set training.batch_size=256"
    " --set training.epochs=20 --set method.validation_batch_size=64"
)
_COLUMNS = (
    "--set model.name=mlp --set model.width=0"
    " --set training.epochs=2 --set training.batch_size=250 --runs 1"
)


@dataclass(frozen=True)
class Wanted:
    """One audit: what it is called on the page, and the arguments of `tacit audit`."""

    part: str
    name: str
    method: str
    dataset: str
    arguments: str

    @property
    def recipe(self) -> str:
        return self.arguments.split()[0]

    @property
    def command(self) -> str:
        return f"tacit audit {self.arguments}"


WANTED = (
    Wanted("faults", "planted faults", "all", "generated", "--self-test"),
    Wanted("canaries", "DP-SGD", "dpsgd", "mnist", f"mnist {_MNIST_SIZE}"),
    Wanted("canaries", "DP-FTRL, tree", "dpftrl", "mnist", f"002/table4-row1-dpftrl {_MNIST_SIZE}"),
    Wanted(
        "canaries", "DP-FTRL, banded", "dpftrl", "mnist", f"002/table4-row1-banded {_MNIST_SIZE}"
    ),
    Wanted(
        "canaries",
        "DP-FTRL, amplified",
        "dpftrl",
        "mnist",
        f"002/table4-row1-amplified {_MNIST_SIZE}",
    ),
    *(
        Wanted(
            "canaries",
            name,
            name.lower(),
            "mnist",
            f"001/mnist-proven3-{name.lower()} --set privacy.epsilon=4 --set training.epochs=10"
            " --runs 2",
        )
        for name in ("DPSUR", "DPSGD-BR")
    ),
    Wanted(
        "canaries",
        "batch clipping",
        "batch-clipping",
        "mnist",
        "003/equal-mnist-batch-flat --set privacy.epsilon=4 --runs 1",
    ),
    Wanted(
        "models",
        "plain SGD",
        "plain",
        "cifar-10",
        "001/cifar-10-ts --set method.name=plain --set training.epochs=25"
        f" --set training.batch_size=64 --set training.learning_rate=0.05 {_SMALL_CIFAR}",
    ),
    Wanted(
        "models",
        "DP-SGD, ε = 4",
        "dpsgd",
        "cifar-10",
        "001/cifar-10-ts --set privacy.epsilon=4 --set training.batch_size=256"
        f" --set training.epochs=20 {_SMALL_CIFAR}",
    ),
    Wanted(
        "models",
        "DPSUR, ε = 4",
        "dpsur",
        "cifar-10",
        f"001/cifar-10-ts --set method.name=dpsur {_TRIALS} {_SMALL_CIFAR}",
    ),
    Wanted(
        "models",
        "DPSGD-BR with decay, ε = 4",
        "dpsgd-br",
        "cifar-10",
        f"001/cifar-10-ts --set method.name=dpsgd-br --set method.decay=true"
        f" --set method.feedback_batch_size=500 {_TRIALS} {_SMALL_CIFAR}",
    ),
    Wanted(
        "columns",
        'the paper\'s algorithm, `guarantee = "paper"`',
        "sanitization",
        "mnist",
        f"000/mnist-paper-short {_COLUMNS}",
    ),
    Wanted(
        "columns",
        "S1, one release",
        "sanitization",
        "mnist",
        f"000/mnist-one-time --set method.encoder=given {_COLUMNS}",
    ),
    Wanted(
        "columns",
        "S3, class sums",
        "sanitization",
        "mnist",
        f"000/mnist-class-sums --set method.encoder=given {_COLUMNS}",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names of audits; an empty list: only the page")
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()
    for wanted in WANTED:
        if arguments.only is not None and wanted.name not in arguments.only:
            continue
        if not any(row["command"] == wanted.command for row in stored()):
            add(measured(wanted, arguments.data_dir))
    (RESULTS / "audit.md").write_text(page(stored()), "utf-8")


def measured(wanted: Wanted, data_dir: Path | None) -> Json:
    """One audit by the command line, with the processor time it took."""
    place = ["--data-dir", str(data_dir)] if data_dir and wanted.part != "faults" else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _TACIT, "audit", *wanted.arguments.split(), *place]
        out = ["--out", folder] if wanted.part != "faults" else []
        done = subprocess.run([*command, *out, "--json"], capture_output=True, text=True)
    if done.returncode not in (0, 9):
        raise RuntimeError(f"{wanted.command}: exit code {done.returncode}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = json.loads(done.stdout)
    findings = said["tried"] if wanted.part == "faults" else said["findings"]
    for finding in findings:
        finding.pop("roc", None)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    shown = {"command": wanted.command, "recipe": wanted.recipe, "seconds": round(seconds, 1)}
    if wanted.part == "faults":
        return {**asdict(wanted), **shown, "tried": findings}
    worst = max(findings, key=lambda found: found["epsilon"])
    return {**asdict(wanted), **shown, "finding": worst, "findings": findings}


def stored() -> list[Json]:
    path = RESULTS / "audit.json"
    rows: list[Json] = json.loads(path.read_text("utf-8")) if path.exists() else []
    return rows


def add(row: Json) -> None:
    """Keep an audit; one of the same name by another command is replaced."""
    names = [wanted.name for wanted in WANTED]
    rows = [*(r for r in stored() if r["name"] != row["name"] and r["name"] in names), row]
    rows.sort(key=lambda r: names.index(r["name"]))
    text = json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    (RESULTS / "audit.json").write_text(text, "utf-8")
    print(row["name"], f"{row['seconds']:.0f} s", flush=True)


def page(rows: list[Json]) -> str:
    """docs/results/audit.md, every figure from the stored audits."""
    text = TEMPLATE.read_text("utf-8")
    for part, table in (
        ("canaries", _canaries),
        ("faults", _faults),
        ("models", _models),
        ("columns", _columns),
    ):
        text = text.replace(f"{{{part}}}", table([row for row in rows if row["part"] == part]))
    return text


def _canaries(rows: list[Json]) -> str:
    lines = [
        "| method | ε claimed | ε proven | ε audited | AUC (interval) | highest AUC allowed |"
        " relation | coins | seconds | command |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        found = row["finding"]
        lines.append(
            f"| {row['name']} | {_claimed(found)} | {_proven(found)} | {_audited(found)} |"
            f" {_auc(found)} | {found['highest_auc']:.3f} | {found['relation']} |"
            f" {found['coins']:,} | {row['seconds']:.0f} | `{row['command']}` |"
        )
    return "\n".join(lines)


def _faults(rows: list[Json]) -> str:
    lines = ["| fault | ε as charged | ε audited | found |", "|---|---|---|---|"]
    for one in (one for row in rows for one in row["tried"]):
        found = one["finding"]
        said = "yes" if found["status"] == "broken" else "nothing"
        right = ", rightly" if one["harmless"] and one["passed"] else ""
        lines.append(f"| {one['fault']} | {_proven(found)} | {_audited(found)} | {said}{right} |")
    took = "".join(f"\n\n{row['seconds']:.0f} processor seconds." for row in rows)
    return "\n".join(lines) + took


def _models(rows: list[Json]) -> str:
    lines = [
        "| training | attack | AUC (interval) | highest AUC allowed | TPR at 0.1 % FPR | ε proven"
        " (replace-one) | ε audited |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        for found in row["findings"]:
            rate = found["true_positives"]["0.001"]["estimate"]
            lines.append(
                f"| {row['name']} | {found['attack']} | {_auc(found)} |"
                f" {found['highest_auc']:.3f} | {rate:.1%} | {_proven(found)} |"
                f" {_audited(found)} |"
            )
    commands = "\n".join(f"    {row['command']}   # {row['seconds']:.0f} s" for row in rows)
    return "\n".join(lines) + f"\n\n{commands}"


def _columns(rows: list[Json]) -> str:
    lines = [
        "| variant | ε claimed | ε proven | ε audited | verdict | seconds | command |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        found = row["finding"]
        lines.append(
            f"| {row['name']} | {_claimed(found)} | {_proven(found)} | {_audited(found)} |"
            f" {found['status']} | {row['seconds']:.0f} | `{row['command']}` |"
        )
    return "\n".join(lines)


def _claimed(found: Json) -> str:
    return "none" if found["claimed"] is None else f"{found['claimed']:.3g}"


def _proven(found: Json) -> str:
    return "none" if found["proven"] is None else values.proven(found["proven"])


def _audited(found: Json) -> str:
    return f"≥ {values.audited(found['epsilon'])}"


def _auc(found: Json) -> str:
    auc = found["auc"]
    return f"{auc['estimate']:.3f} ({auc['low']:.3f}–{auc['high']:.3f})"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
