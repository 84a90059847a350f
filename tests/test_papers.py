"""The papers' tables: every entry leads somewhere, and rows are trained once and shown."""

import json
import re
from pathlib import Path

import pytest

from tacit import config
from tacit.cli import main
from tacit.commands import papers as papers_command
from tacit.errors import ArgumentError
from tacit.papers.index import Item, Row, find, papers
from tacit.papers.repeat import Result, minutes, repeat, results, state, trainings

QUICK = {"training.epochs": "1", "model.name": "linear"}
ROW = Row(what="quick", recipe="digits", accuracy=90.0, epsilon=3.0, changes=QUICK)


def test_every_row_is_a_recipe_that_can_be_used() -> None:
    rows = [row for paper in papers() for item in paper.items for row in item.rows]
    assert len(rows) >= 30
    for row in rows:
        assert row.recipe in config.builtin_names()
        assert row.wanted(seed=1).run.seed == 1


def test_a_row_at_equal_proven_epsilon_is_trained_at_what_the_paper_prints() -> None:
    for row in (row for paper in papers() for item in paper.items for row in item.rows):
        if row.equal == "proven" and row.epsilon is not None:
            assert row.wanted().privacy.epsilon == row.epsilon, row


def test_papers_and_their_items_are_in_the_order_of_their_numbers() -> None:
    assert [paper.number for paper in papers()] == ["000", "001", "002", "003"]
    for paper in papers():
        places = [re.fullmatch(r"(table|figure)(\d+)", item.name) for item in paper.items]
        found = [(place[1] == "figure", int(place[2])) for place in places if place]
        assert len(found) == len(paper.items) and found == sorted(found), paper.number


def test_names_are_unique_and_mistakes_get_a_hint() -> None:
    names = [f"{paper.number}/{item.name}" for paper in papers() for item in paper.items]
    assert len(names) == len(set(names))
    with pytest.raises(ArgumentError, match="did you mean '002/table2'"):
        find("002/tabel2")


def test_an_item_leads_somewhere() -> None:
    with pytest.raises(ValueError, match="no rows, no command and no reason"):
        Item(name="table9", title="nothing")


def test_rows_are_chosen_by_data_and_epsilon() -> None:
    table = find("002/table1")
    assert [row.epsilon for row in table.chosen(["mnist"], [1.68, 13.09])] == [1.68, 13.09]
    with pytest.raises(ArgumentError, match="does not use"):
        table.chosen(["imdb"], None)
    with pytest.raises(ArgumentError, match=r"its ε are: 1\.68"):
        table.chosen(None, [2.0])


def test_rows_say_how_long_they_take_and_those_of_finished_tables_all_do() -> None:
    rows = [row for paper in papers() for item in paper.items for row in item.rows]
    assert all(row.minutes > 0 for row in rows if row.minutes is not None)
    for name in ("002/table1", "002/table2", "002/table4"):
        assert all(row.minutes is not None for row in find(name).rows), name


def test_a_row_that_was_never_timed_says_so() -> None:
    assert papers_command._cost([None, None]) == "time not known"
    assert papers_command._cost([None, 0.5, 120.0]) == "about 0.5 min to 2 h a run"
    assert papers_command._cost([12.2, 12.4]) == "about 12 min a run"
    assert papers_command._cost([]) == ""


def test_a_row_is_named_as_the_command_line_takes_it() -> None:
    changes = {"method.clip": "0.1", "privacy.epsilon": "1"}
    assert Row(what="", recipe="digits", changes=changes).command == (
        "digits --epsilon 1 --set method.clip=0.1"
    )
    assert Row(what="", recipe="digits").command == "digits"


def test_what_two_cores_cannot_do_says_so(tmp_path: Path) -> None:
    item = Item(name="figure0", title="slow", too_long="it takes days")
    assert state(item, 1, tmp_path) == "too long for two cores"
    with pytest.raises(ArgumentError, match="is not trained: it takes days"):
        item.chosen(None, None)


def test_what_is_finished_is_not_trained_again(tmp_path: Path) -> None:
    item = Item(name="table0", title="quick", rows=(ROW,))
    repeat([ROW], seeds=1, out=tmp_path)
    (first,) = (training.out for training in trainings(ROW, 1, tmp_path))
    before = (first / "ledger.jsonl").stat().st_mtime_ns
    assert state(item, 2, tmp_path) == "1 of 2 runs"
    repeat([ROW], seeds=2, out=tmp_path)
    assert (first / "ledger.jsonl").stat().st_mtime_ns == before
    (found,) = results([ROW], 2, tmp_path)
    assert len(found.runs) == 2 and found.wanted == 2
    assert found.proven is not None and found.proven <= 3.0
    assert found.claimed is not None and found.accuracy is not None and found.spread is not None
    assert found.accuracy == pytest.approx(sum(found.accuracies) / 2)
    seconds = [run.metrics["training_seconds"] for run in found.runs]
    assert minutes(ROW, 2, tmp_path) == found.minutes == pytest.approx(sum(seconds) / 120)
    assert minutes(find("002/table1").rows[0], 2, tmp_path) == find("002/table1").rows[0].minutes


def test_the_list_and_an_item_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line, keys in (
        (f"papers --out {tmp_path} --json", {"items"}),
        (f"papers show 002/table1 --epsilons 1.68 3.33 --out {tmp_path} --json", {"item", "rows"}),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(line.split())
        assert stopped.value.code == 0
        shown = json.loads(capsys.readouterr().out)
        assert set(shown) == keys
    assert [row["paper"]["epsilon"] for row in shown["rows"]] == [1.68, 3.33]
    assert [row["runs"] for row in shown["rows"]] == [0, 0]


def test_what_is_drawn_by_a_command_is_shown_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    for item, rows in (("000/figure4", 0), ("000/figure14", 8), ("000/figure1", 0)):
        with pytest.raises(SystemExit) as stopped:
            main(f"papers show {item} --json".split())
        assert stopped.value.code == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["remark"] == find(item).remark and len(shown["rows"]) == rows
    with pytest.raises(SystemExit):
        main(["papers", "show", "000/figure4"])
    assert "sanitization_figures.py --figures 4" in capsys.readouterr().out


def test_the_list_names_each_paper_by_number_title_and_authors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["papers", "--out", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    places = [lines.index(f"Paper {paper.number}: {paper.title}") for paper in papers()]
    assert places == sorted(places)
    for place, paper in zip(places, papers(), strict=True):
        below = lines[place + 1 : place + 3]
        assert any(line.startswith(f"{paper.number}/table") for line in below)
        assert paper.authors == (below[0] if paper.authors else "")


@pytest.mark.parametrize("item", ["001/table2", "002/table1", "003/figure7"])
def test_an_item_is_whole_in_80_columns(
    item: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["papers", "show", item, "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80 and "…" not in shown
    row = next(row for row in find(item).rows if row.accuracy is not None)
    words = next(line for line in shown.splitlines() if f"{row.accuracy:.2f}" in line).split()
    assert "not" in words and "0/3" in words
    for title in ("paper", "at", "ours", "runs", "claimed", "proven", "audited", "time"):
        assert title in shown


def test_our_figures_are_rounded_against_us_and_the_equal_epsilon_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"accuracies": [0.94149, 0.94149], "claimed": 2.9999, "proven": 2.9912}
    for name, value in {**known, "audited": 0.1299, "minutes": 3.0}.items():
        monkeypatch.setattr(Result, name, value)
    monkeypatch.setenv("COLUMNS", "80")
    papers_command._print("x/y", [Result(ROW, (), 2)], as_json=False)
    last = " ".join(capsys.readouterr().out.splitlines()[-1].split())
    assert last == "quick 90.00 3 94.14 ± 0.00 0/2 3.00 =3.00 0.12 3.0 min"
