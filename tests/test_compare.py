"""Comparisons from run directories and recipes: trained once, verified always."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from small_runs import written_recipe

from tacit.cli import main
from tacit.commands.many import spread_out
from tacit.compare import compare
from tacit.errors import ArgumentError, LedgerError

pytestmark = pytest.mark.usefixtures("without_figures")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two budgets with two seeds each, trained by a comparison of their own."""
    folder = tmp_path_factory.mktemp("compare")
    found = compare([written_recipe(folder)], epsilons=[1.0, 3.0], seeds=2, out=folder / "first")
    assert [len(group.members) for group in found.groups] == [2, 2]
    yield folder / "first" / "runs"


def stamps(folder: Path) -> dict[str, int]:
    """When each ledger was last written to."""
    return {str(p): p.stat().st_mtime_ns for p in sorted(folder.rglob("ledger.jsonl"))}


def test_recipes_are_trained_at_equal_proven_budgets(runs: Path) -> None:
    numbers = json.loads((runs.parent / "compare.json").read_text("utf-8"))
    assert [row["seeds"] for row in numbers["groups"]] == [[0, 1], [0, 1]]
    for row, budget in zip(numbers["groups"], (1.0, 3.0), strict=True):
        assert budget - 0.01 < row["epsilon_proven"] <= budget
    names = [path.name.rpartition("-")[0] for path in sorted(runs.iterdir())]
    assert names == [f"small-epsilon-{e}-seed-{s}" for e in (1, 3) for s in (0, 1)]


def test_a_finished_run_is_not_trained_again(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("tacit.train.train", never)
    before = stamps(runs)
    again = written_recipe(runs.parent.parent)
    found = compare([again, again], epsilons=[3.0], seeds=2, out=runs.parent)
    assert [len(group.members) for group in found.groups] == [2]
    assert stamps(runs) == before


def test_another_recipe_of_the_same_name_is_another_run(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "out" / "runs")
    changed = written_recipe(tmp_path, epochs=4.0)
    found = compare([changed], epsilons=[1.0], seeds=1, out=tmp_path / "out")
    assert found.groups[0].steps == 9
    assert len(stamps(tmp_path / "out")) == 5


def test_directories_alone_are_enough_and_copies_count_once(runs: Path, tmp_path: Path) -> None:
    first = sorted(runs.iterdir())[0]
    shutil.copytree(first, tmp_path / "copy")
    unfinished = tmp_path / "more" / "unfinished"
    shutil.copytree(first, unfinished)
    (unfinished / "weights.safetensors").unlink()
    shutil.copytree(first, tmp_path / "more" / "finished")
    items = [str(first), str(runs), str(tmp_path / "copy"), str(tmp_path / "more")]
    found = compare(items, out=tmp_path / "out")
    assert [len(group.members) for group in found.groups] == [2, 2]
    notes = found.numbers["notes"]
    assert sum("Counted once" in note for note in notes) == 3
    assert any("not finished" in note and "unfinished" in note for note in notes)
    accuracy = json.loads((first / "metrics.json").read_text("utf-8"))["final"]["accuracy"]
    assert accuracy in found.numbers["groups"][0]["accuracies"]


def test_a_recipe_of_another_version_is_no_obstacle(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    changed = sorted((tmp_path / "runs").iterdir())[0] / "recipe.toml"
    changed.write_text(changed.read_text("utf-8") + "[later]\nkey = 1\n")
    with pytest.raises(LedgerError, match="not the recipe that the ledger names"):
        compare([str(tmp_path / "runs")], out=tmp_path / "out")
    monkeypatch.setattr("tacit.verify.version", lambda package: "another")
    found = compare([str(tmp_path / "runs")], out=tmp_path / "out")
    assert [len(group.members) for group in found.groups] == [1, 1, 2]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ledger.jsonl", b'"step":1', b'"step":9'),
        ("certificate.json", b'"epsilon": 0.', b'"epsilon": 0.0'),
        ("weights.safetensors", b"", b"x"),
    ],
)
def test_a_run_that_was_tampered_with_is_refused(
    runs: Path, tmp_path: Path, name: str, old: bytes, new: bytes
) -> None:
    first = sorted(runs.iterdir())[0]
    shutil.copytree(first, tmp_path / "run")
    path = tmp_path / "run" / name
    data = path.read_bytes()
    path.write_bytes(data.replace(old, new, 1) if old else data + new)
    with pytest.raises(LedgerError, match=str(tmp_path / "run")):
        compare([str(runs), str(tmp_path / "run")], out=tmp_path / "out")
    assert not (tmp_path / "out" / "compare.html").exists()


def test_without_privacy_a_recipe_is_trained_once_whatever_the_budgets(
    tmp_path: Path, runs: Path
) -> None:
    plain = written_recipe(tmp_path, "plain", method="plain")
    found = compare([plain, str(runs)], epsilons=[1.0, 3.0], seeds=1, out=tmp_path / "out")
    assert len(stamps(tmp_path / "out")) == 1
    assert found.groups[-1].promise is None and found.groups[0].promise is not None
    row = found.numbers["groups"][-1]
    assert row["epsilon_proven"] is None and row["epsilon_audited"] is None
    before = stamps(tmp_path / "out")
    compare([plain, str(runs)], epsilons=[1.0, 3.0], seeds=1, out=tmp_path / "out")
    assert stamps(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("items", "options", "words"),
    [
        ([], {}, "nothing to compare"),
        (["nothing-here"], {}, "neither a dataset"),
        (["empty"], {}, "holds no run"),
        (["small.toml"], {"seeds": 0}, "seeds is 0"),
        (["small.toml"], {"jobs": 0}, "jobs is 0"),
        (["small.toml"], {"epsilons": [-1.0]}, "privacy.epsilon is -1.0"),
        (["small.toml"], {"seeds": 1, "changes": {"run.seed": "3"}}, "choose one"),
        (["small.toml"], {"epsilons": [1.0], "changes": {"privacy.noise": "3"}}, "solved"),
    ],
)
def test_mistakes_are_explained_before_anything_is_trained(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    items: list[str],
    options: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    written_recipe(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match=words):
        compare(items, **options)
    assert not list(tmp_path.rglob("ledger.jsonl"))


def test_settings_without_a_recipe_are_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="only finished runs"):
        compare([str(runs)], epsilons=[1.0], out=tmp_path)


def test_the_command_prints_a_table_and_the_same_numbers_as_json(
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tacit.commands.compare.screen", Console(width=200, highlight=False))
    line = ["compare", str(runs), "--out", str(tmp_path)]
    with pytest.raises(SystemExit, match="0"):
        main(line)
    shown = capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main([*line, "--json"])
    numbers = json.loads(capsys.readouterr().out)
    assert (tmp_path / "compare.html").is_file() and numbers["page"].endswith("compare.html")
    for row in numbers["groups"]:
        assert row["group"] in shown
        assert f"{row['steps']:.0f}" in shown and str(row["noise_multiplier"]) in shown
    assert "not audited" in shown and "ε ≤ 1" in shown
    stored = json.loads((tmp_path / "compare.json").read_text("utf-8"))
    assert stored["groups"] == numbers["groups"]


def test_epsilon_takes_all_numbers_that_follow() -> None:
    given = ["a", "--epsilon", "1", "3", "--seeds", "2", "b", "--epsilon", "8"]
    assert spread_out(given) == [
        *("a", "--epsilon", "1", "--epsilon", "3", "--seeds", "2", "b", "--epsilon", "8"),
    ]
    assert spread_out(["--epsilon", "1", "digits", "3"]) == ["--epsilon", "1", "digits", "3"]
