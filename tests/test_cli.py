"""The command line as a person or a program uses it."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tacit.cli import main

PLAN = "plan dpsgd --records 60000 --batch-size 256 --epochs 20 --delta 1e-5"
BARE = "plan dpsgd --records 60000 --batch-size 256"
QUICK = "--epochs 2 --batch-size 200 --seed 0"


@dataclass
class Shown:
    stdout: str
    stderr: str


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished private run; copy it before changing it."""
    path = tmp_path_factory.mktemp("trained") / "run"
    with pytest.raises(SystemExit) as stopped:
        main([*f"train digits {QUICK} --out".split(), str(path)])
    assert stopped.value.code == 0
    return path


Run = Callable[..., Shown]


@pytest.fixture
def tacit(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(line: str, code: int = 0) -> Shown:
        with pytest.raises(SystemExit) as stopped:
            main(line.split())
        captured = capsys.readouterr()
        assert stopped.value.code == code, captured.err + captured.out
        return Shown(captured.out, captured.err)

    return run


def as_json(tacit: Run, line: str, code: int = 0) -> Any:
    return json.loads(tacit(f"{line} --json", code).stdout)


def test_the_version_is_that_of_the_package(tmp_path: Path, tacit: Run) -> None:
    assert tacit("--version").stdout.strip() == version("tacit")


def test_plan_prints_the_promised_keys(tmp_path: Path, tacit: Run) -> None:
    answer = as_json(tacit, f"{PLAN} --noise 1.0")
    assert answer["noise"] == 1.0 and answer["steps"] == 4688 and answer["delta"] == 1e-5
    assert answer["proven"]["add-or-remove-one"] == pytest.approx(1.566, abs=0.005)
    assert answer["proven"]["replace-one"] == pytest.approx(2.587, abs=0.005)
    assert answer["claimed"] == pytest.approx(1.567, abs=0.01)
    features = as_json(tacit, f"{PLAN} --noise 1.0 --relation replace-features")["proven"]
    assert features["replace-features"] == answer["proven"]["replace-one"]
    solved = as_json(tacit, f"{PLAN} --epsilon 3")
    assert 2.99 <= solved["proven"]["add-or-remove-one"] <= 3
    assert solved["solved_for"] == "noise"


SELECTIVE = (
    "--records 60000 --batch-size 1024 --noise 3 --validation-batch-size 256"
    " --validation-noise 1.37 --beta -1.5 --delta 1e-5"
)


def test_plan_of_selective_update_says_what_covers_it(tmp_path: Path, tacit: Run) -> None:
    trials = f"{SELECTIVE} --trials 2500 --accepted 1000"
    compared = as_json(tacit, f"plan dpsgd-br {trials}")
    assert compared["claimed"] == pytest.approx(0.889, abs=5e-4)
    assert compared["proven"]["add-or-remove-one"] == pytest.approx(1.3292, abs=1e-4)
    assert compared["proven"]["charge_all"] == pytest.approx(1.3292, abs=1e-4)
    assert compared["proven"]["thinning"] is compared["proven"]["a_star"] is None
    thinned = as_json(tacit, f"plan dpsur {trials}")
    assert thinned["proven"]["add-or-remove-one"] == thinned["proven"]["thinning"] < 1.03
    assert 0.55 < thinned["proven"]["a_star"] < 0.65
    fewer = as_json(tacit, f"plan dpsur {SELECTIVE} --trials 2500 --accepted 10")
    assert fewer["proven"] == thinned["proven"] and fewer["claimed"] < thinned["claimed"]
    averaged = as_json(tacit, f"plan dpsgd-br {trials} --choice average")
    assert averaged["proven"] == thinned["proven"]
    assert "not covered" in tacit(f"plan dpsgd-br {trials}").stdout
    filtered = as_json(tacit, f"plan dpsgd-br {SELECTIVE} --epsilon 1 --decaying")
    assert filtered["proven"]["add-or-remove-one"] <= 1 and filtered["filter"]["order"] > 1
    assert filtered["accounting"].startswith("RDP filter") and filtered["solved_for"] == "trials"
    assert filtered["proven"]["charge_all"] is filtered["proven"]["thinning"] is None
    assert "--decaying" in tacit(f"plan dpsgd-br {trials}").stdout
    nearly_all = tacit(f"plan dpsur {SELECTIVE} --trials 10".replace("-1.5", "20")).stdout
    assert "accepts nearly everything" in nearly_all


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("", "trials and epsilon are missing"),
        ("--trials 0", "trials is 0"),
        ("--trials 100 --epsilon nan", "epsilon is nan"),
        ("--trials 100 --buffer 9", "buffer is 9; it must lie between 1 and 4"),
        ("--trials 100 --accepted 200", "accepted is 200, but there are only 100"),
        ("--epsilon 0.2 --accepted 5000000", "accepted is 5000000, but there are only"),
        ("--trials 2500 --epsilon 1 --decaying", "of 2500 trials only"),
        ("--trials 9 --decaying --relation replace-one", "relation is replace-one"),
        ("--trials 9 --validation-batch-size 70000", "validation_batch_size is 70000"),
    ],
)
def test_plan_of_selective_update_names_what_is_wrong(tacit: Run, rest: str, words: str) -> None:
    found = " ".join(tacit(f"plan dpsgd-br {SELECTIVE} {rest}", 2).stderr.split())
    assert words in found


def test_plan_shows_a_table_and_a_forecast(tmp_path: Path, tacit: Run) -> None:
    line = "plan dpsgd --records 2000 --batch-size 100 --epochs 3 --noise 1 --model convnet"
    shown = tacit(f"{line} --data digits").stdout
    for word in ("ε proven, add-or-remove-one", "ε proven, replace-one", "memory", "epochs"):
        assert word in shown
    cost = as_json(tacit, f"{line} --shape 1,8,8")["forecast"]
    assert cost["seconds"] > 0 and cost["peak_bytes"] > 2**20


@pytest.mark.parametrize(
    ("line", "words", "code"),
    [
        (f"{PLAN} --epsilon 0", "epsilon is 0", 2),
        (f"{PLAN} --noise 1 --epsilon 1", "all given", 2),
        (f"{PLAN}", "epsilon and noise are missing", 2),
        (f"{PLAN}", "give 1 of these 2, such as epsilon 3 to solve for noise", 2),
        (BARE, "epsilon, noise and epochs (or steps) are missing", 2),
        (BARE.replace("dpsgd", "dpftrl"), "such as epsilon 3 and epochs 20 to solve for noise", 2),
        (BARE.replace("dpsgd", "batch-clipping"), "epsilon, noise and epochs are missing", 2),
        ("plan sanitization --records 100", "noise and epsilon are both missing", 2),
        ("plan dpsgd --records 10 --batch-size 20 --epochs 1 --noise 1", "larger than the 10", 2),
        (f"{PLAN} --noise 1 --model lenet", "did you mean 'lenet5'", 2),
        ("train nothing-here", "neither a dataset", 2),
        ("train mnst", "did you mean 'mnist'", 2),
        ("train digits --method dpsdg", "did you mean 'dpsgd'", 2),
        ("train digits --epsilon -1", "privacy.epsilon is -1.0", 2),
        ("train digits --set training.lr=1", "known here", 2),
        ("train digits --set oops", "key=value", 2),
        ("train", "nothing to train", 2),
        ("train --resume", "needs --out", 2),
        ("train digits --resume --out x", "as it was started", 2),
        ("train --resume --out nowhere", "without --resume", 6),
        ("train digits --model lenet5", "needs images", 4),
        ("train digits --batch-size 5000", "larger than the 1438", 2),
        ("train mnist --data-dir nowhere", "tacit data fetch mnist", 3),
        ("account nowhere", "not a run directory", 6),
        ("data check mnst", "mnist", 3),
    ],
)
def test_mistakes_are_explained_and_spend_nothing(
    tmp_path: Path, tacit: Run, line: str, words: str, code: int
) -> None:
    done = tacit(line, code)
    assert words in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("ledger.jsonl"))
    assert as_json(tacit, line, code)["exit_code"] == code


def test_train_account_report(tmp_path: Path, tacit: Run) -> None:
    shown = tacit(f"train digits {QUICK} --out run")
    for name in ("weights.safetensors", "certificate.txt", "report.html"):
        assert name in shown.stdout and (tmp_path / "run" / name).exists()
    assert "epoch" in shown.stderr and "accuracy" in shown.stderr
    assert "ε proven" in shown.stdout and "(ε = 3" in shown.stdout
    issued = as_json(tacit, "account run")
    assert issued["verified"] is True and issued["guarantee"]["epsilon"] <= 3
    looser = as_json(tacit, "account run --accountant rdp --delta 1e-6")
    assert looser["guarantee"]["epsilon"] > issued["guarantee"]["epsilon"]
    (tmp_path / "run" / "report.html").unlink()
    assert as_json(tacit, "report run")["report"] == "run/report.html"
    assert (tmp_path / "run" / "report.html").exists()
    shown = tacit("account run").stdout
    for words in ("chain", "weights", "recipe.toml", "certificate.json and certificate.txt"):
        assert any(words in line and "verified: " in line for line in shown.splitlines()), words
    assert "not checked: metrics.json" in shown and "report.html" in shown
    assert issued["not_checked"] and len(issued["checked"]) == 4


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("certificate.json", r'"epsilon": [\d.]+', '"epsilon": 1'),
        ("certificate.json", r"^", "x"),
        ("certificate.txt", r"ε = [\d.]+", "ε = 1"),
        ("ledger.jsonl", r'.*"step":3.*\n', ""),
        ("ledger.jsonl", r".*\n\Z", ""),
        ("recipe.toml", r"batch_size = \d+", "batch_size = 100"),
        ("recipe.toml", r"(?s).*", ""),
    ],
)
def test_neither_account_nor_report_trusts_changed_files(
    tmp_path: Path, tacit: Run, trained: Path, name: str, old: str, new: str
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    text = (tmp_path / "run" / name).read_text("utf-8")
    changed = re.sub(old, new, text, count=1, flags=re.MULTILINE)
    assert changed != text
    (tmp_path / "run" / name).write_text(changed, "utf-8")
    assert "Traceback" not in tacit("account run", 7).stderr
    assert as_json(tacit, "report run", 7)["exit_code"] == 7
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_certificate_beside_an_unfinished_ledger_is_refused(
    tmp_path: Path, tacit: Run, trained: Path
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    ledger = tmp_path / "run" / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    (tmp_path / "run" / "weights.safetensors").unlink()
    assert "must not be there" in tacit("report run", 7).stderr


def test_train_as_json_and_again_from_the_stored_recipe(tmp_path: Path, tacit: Run) -> None:
    first = as_json(tacit, f"train digits {QUICK} --out one")
    again = as_json(tacit, "train one/recipe.toml --out two")
    assert first["certificate"]["weights_sha256"] == again["certificate"]["weights_sha256"]
    assert first["metrics"]["final"]["accuracy"] == again["metrics"]["final"]["accuracy"]
    resumed = as_json(tacit, "train --resume --out one")
    assert resumed["certificate"] == first["certificate"]


def test_own_data_and_plain_baseline(tmp_path: Path, tacit: Run) -> None:
    rows = ["a,b,label"] + [f"{i % 7},{i % 5},{int(i % 7 > 3)}" for i in range(200)]
    (tmp_path / "own.csv").write_text("\n".join(rows))
    line = "train own.csv --epochs 2 --batch-size 50 --set data.options.test_fraction=0.2"
    assert "data.options.classes" in tacit(line, 2).stderr
    line += " --set data.options.classes=2"
    answer = as_json(tacit, f"{line} --out run")
    assert answer["metrics"]["model"] == "mlp" and answer["metrics"]["records"] == 160
    plain = as_json(tacit, "train digits --method plain --epochs 2 --seed 1 --out plain")
    assert plain["certificate"]["guarantee"] is None
    assert not list((tmp_path / "plain").glob("certificate.*"))
    shown = " ".join(tacit("account plain").stdout.split())
    assert "nothing about the training records is protected" in shown
    assert "verified: there is no certificate" in shown
    tacit("report plain")
    shown = tacit("train --resume --out plain").stdout
    assert "certificate.txt" not in shown and "report.html" in shown


def test_data_commands(tmp_path: Path, tacit: Run) -> None:
    names = {entry["name"] for entry in as_json(tacit, "data list")}
    assert names == {"digits", "mnist", "fashion-mnist", "cifar-10", "imdb"}
    assert "digits" in tacit("data list").stdout
    assert as_json(tacit, "data check digits")["ok"] is True
    (tmp_path / "own.csv").write_text("a,label\n1,0\n2,1\n")
    shown = tacit("data check own.csv").stdout
    assert "own.csv: your own data" in shown and "own.csv: own.csv" not in shown
    assert "2 training records" in shown and "no test records" in shown and "None" not in shown
    (tmp_path / "named.csv").write_text("outcome,a\nyes,1\nno,2\n")
    assert "Labels are read from 'a'" in tacit("data check named.csv", 3).stderr
    options = "--set data.options.label_column=outcome --set data.options.test_fraction=0.5"
    assert as_json(tacit, f"data check named.csv {options}")["test_records"] == 1


def test_help_names_every_command(tmp_path: Path, tacit: Run) -> None:
    shown = tacit("--help").stdout
    for command in ("train", "plan", "account", "report", "data"):
        assert command in shown


@pytest.mark.parametrize("start", [["-c", "from tacit.cli import main; main()"], ["-m", "tacit"]])
def test_the_installed_command_starts(tmp_path: Path, start: list[str]) -> None:
    command = [sys.executable, *start, "plan", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "dpsgd" in done.stdout


@pytest.mark.parametrize(("flag", "stored"), [("--deterministic", "true"), ("--timed", "false")])
def test_the_choice_of_algorithms_is_a_flag(
    tmp_path: Path, tacit: Run, flag: str, stored: str
) -> None:
    tacit(f"train digits {QUICK} {flag} --out {tmp_path / 'run'}")
    assert f"deterministic = {stored}" in (tmp_path / "run" / "recipe.toml").read_text()
