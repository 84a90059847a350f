"""Audits of methods, planted faults and papers: kept as JSON, shown as Markdown.

    python benchmarks/audits.py --data-dir DATA

Every finished audit is added to docs/results/audit.json at once; an audit whose command has changed
is done again. Pages are made from that file alone.
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

from accuracy_suite.audited import Audit, all_audits
from accuracy_suite.everything import write_all
from accuracy_suite.stored import RESULTS

_SIX = (
    "loss-threshold",
    "shadow-models",
    "partial-gradients",
    "lira-offline",
    "lira-online",
    "rmia",
)
_TACIT = "from tacit.cli import main; main()"
_EPSILON = 4
_BUDGET = f"--set privacy.epsilon={_EPSILON}"
_MNIST_SIZE = f"{_BUDGET} --set training.batch_size=500 --set training.epochs=10 --runs 3"
_SMALL_CIFAR = "--pairs 1000 --shadows 4 --seed 1" + "".join(f" --attack {name}" for name in _SIX)
_TRIALS = (
    f"{_BUDGET} --set privacy.noise=4 --set training.batch_size=256"
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
            f"001/mnist-proven3-{name.lower()} {_BUDGET} --set training.epochs=10 --runs 2",
        )
        for name in ("DPSUR", "DPSGD-BR")
    ),
    Wanted(
        "canaries",
        "batch clipping",
        "batch-clipping",
        "mnist",
        f"003/equal-mnist-batch-flat {_BUDGET} --runs 1",
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
        f"DP-SGD, ε = {_EPSILON}",
        "dpsgd",
        "cifar-10",
        f"001/cifar-10-ts {_BUDGET} --set training.batch_size=256"
        f" --set training.epochs=20 {_SMALL_CIFAR}",
    ),
    Wanted(
        "models",
        f"DPSUR, ε = {_EPSILON}",
        "dpsur",
        "cifar-10",
        f"001/cifar-10-ts --set method.name=dpsur {_TRIALS} {_SMALL_CIFAR}",
    ),
    Wanted(
        "models",
        f"DPSGD-BR with decay, ε = {_EPSILON}",
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
        if not any(row["command"] == wanted.command for row in all_audits(RESULTS)):
            add(measured(wanted, arguments.data_dir))
    write_all()


def measured(wanted: Wanted, data_dir: Path | None) -> Audit:
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
        return {**asdict(wanted), **shown, "sizes": said["sizes"], "tried": findings}
    worst = max(findings, key=lambda found: found["epsilon"])
    return {**asdict(wanted), **shown, "finding": worst, "findings": findings}


def add(row: Audit) -> None:
    """Keep an audit; one of the same name by another command is replaced."""
    names = [wanted.name for wanted in WANTED]
    kept = [r for r in all_audits(RESULTS) if r["name"] != row["name"] and r["name"] in names]
    rows = sorted([*kept, row], key=lambda r: names.index(r["name"]))
    text = json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    (RESULTS / "audit.json").write_text(text, "utf-8")
    print(row["name"], f"{row['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
