"""Pages of results say what stored runs say, and no page in the repository is stale."""

import json
from pathlib import Path

import pytest
from accuracy_suite import everything, stored
from accuracy_suite.page import PageError, Sources, filled
from accuracy_suite.stored import present_digest, recipe_of, summaries
from stored_runs import run, seeds

from tacit.errors import ArgumentError


def test_no_page_and_no_table_is_stale() -> None:
    stale = [p.name for p, text in everything.made().items() if p.read_text("utf-8") != text]
    assert stale == [], "made from older results: run `make pages`"


def test_every_page_of_results_is_made_from_stored_json() -> None:
    made = {path for path in everything.made() if path.parent == stored.RESULTS}
    pages = set(stored.RESULTS.glob("*.md"))
    if not (stored.RESULTS / "audit.json").exists():
        pages -= {stored.RESULTS / "audit.md"}
    assert pages == made


def filled_from(template: str, *summarised: stored.Summary, folder: Path = Path()) -> str:
    return filled(template, Sources({one.name: one for one in summarised}, {}, folder))


def test_figures_are_of_all_seeds_and_bounds_are_rounded_up() -> None:
    one = seeds("mnist --epsilon 1", 0.9, 0.92, 0.94, claimed=0.481)
    one.runs[1]["proven"]["add-or-remove-one"] = 1.001
    text = "{accuracy:R} ± {spread:R} of {seeds:R}, {proven:R}, {claimed:R}, {steps:R}, {minutes:R}"
    shown = filled_from(text.replace(":R", ":mnist --epsilon 1"), one)
    assert shown == "92.00 ± 2.00 of 3, 1.01, 0.49, 1,200, 1.5"
    assert filled_from("{scored:mnist --epsilon 1}", one) == "92.00 ± 2.00"
    assert filled_from("{guarantee:mnist --epsilon 1}", one) == "1.01 add-or-remove-one"
    plain = seeds("digits --set method.name=plain", 0.9, relation=None)
    assert filled_from("δ = {delta}, {relation}", one, plain) == "δ = 1e-5, add-or-remove-one"


def test_a_table_has_a_line_for_each_recipe_and_marks_older_ones() -> None:
    old = seeds("002/table1-row1", 0.9, recipe_digest="another")
    new = seeds("002/table2-row1", 0.8, noise=None, relation=None, proven={}, claimed=None)
    lines = filled_from("{table}", old, new).splitlines()[2:]
    assert lines[0].startswith(
        "| `002/table1-row1` (an older form of it) | 1.00 | 0.50 | 1 | 90.00"
    )
    assert lines[1].startswith(
        "| `002/table2-row1` | none | none | 1 | 80.00 | 93.63 | 1200 | none"
    )
    assert len(filled_from("{table:002/table2}", old, new).splitlines()) == 3


def test_a_lead_that_is_none_stops_the_page() -> None:
    better, worse = seeds("002/table1-row1", 0.9), seeds("002/table1-row2", 0.875)
    assert filled_from("{lead:002/table1-row1:002/table1-row2}", better, worse) == "2.50"
    with pytest.raises(PageError, match=r"row2 is not ahead of 002/table1-row1 but 2\.50 points"):
        filled_from("{lead:002/table1-row2:002/table1-row1}", better, worse)


def test_settings_are_those_of_the_recipe_that_was_run() -> None:
    assert filled_from("{setting:002/table2-row1:training.batch_size}") == "1,024"
    changed = seeds("002/table2-row1", 0.9, recipe_digest="another")
    with pytest.raises(PageError, match="has changed since its runs were made"):
        filled_from("{setting:002/table2-row1:training.batch_size}", changed)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{accuracy:mnist --epsilon 1}", "no run of mnist --epsilon 1 is stored"),
        ("{accurcy:002/table1-row1}", "KeyError"),
        ("{proven:nowhere.json:a}", "FileNotFoundError"),
        ("{setting:002/table1-row1:training.nothing}", "AttributeError"),
        ("{paper:mnist --epsilon 8}", "KeyError"),
        ("{delta}", "have not one delta"),
    ],
)
def test_what_is_not_stored_cannot_be_shown(template: str, reason: str) -> None:
    one, other = seeds("002/table1-row1", 0.9), seeds("002/table1-row2", 0.9, delta=1e-6)
    with pytest.raises(PageError, match=reason):
        filled_from(template, one, other)


def test_values_come_from_any_file_beside_the_page(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps({"a": [{"epsilon": 1.2345, "n": 20000}]}))
    text = "{proven:F.epsilon}, {audited:F.epsilon}, {count:F.n}".replace("F", "other.json:a.0")
    assert filled_from(text, folder=tmp_path) == "1.24, 1.23, 20,000"


def test_names_are_read_as_the_command_line_reads_them() -> None:
    recipe = recipe_of("mnist --epsilon 1 --set method.clip=2", seed=4)
    assert (recipe.privacy.epsilon, recipe.run.seed) == (1.0, 4)
    assert recipe.model_dump()["method"]["clip"] == 2
    with pytest.raises(ArgumentError, match="is not RECIPE"):
        recipe_of("mnist --seeds 3")
    assert present_digest("no such recipe", 0) is None


def test_runs_are_gathered_by_recipe() -> None:
    found = summaries([run("mnist --epsilon 1"), run("digits"), run("mnist --epsilon 1", seed=1)])
    assert {name: one.seeds for name, one in found.items()} == {"digits": 1, "mnist --epsilon 1": 2}
    assert found["digits"].current


def test_readme_shows_current_runs_only_between_its_marks() -> None:
    readme = f"before\n{everything.BEGIN}\nold\n{everything.END}\nafter"
    good = seeds("002/table3-row2", 0.9365, 0.9365)
    stale = seeds("mnist --epsilon 3", 0.987, recipe_digest="another")
    text = everything.with_methods(readme, {one.name: one for one in (good, stale)})
    assert text.startswith(f"before\n{everything.BEGIN}\n| method |")
    assert text.endswith(f"|\n{everything.END}\nafter")
    assert "tree 93.65 ± 0.00" in text and "98.70" not in text and "old" not in text
    assert "| MNIST: not measured | not measured, as paper 002 computes it |" in text
    with pytest.raises(ValueError, match="lost its marks"):
        everything.with_methods("no marks", {})


def test_an_item_of_a_paper_has_our_runs_beside_its_rows() -> None:
    current = seeds("001/mnist-eps1-dpsur", 0.98, 0.982, outcome={"applied": 1246}, claimed=1.0)
    older = seeds("001/mnist-eps1-dpsgd-br", 0.9, recipe_digest="another")
    lines = filled_from("{item:001/table2:mnist}", current, older).splitlines()[2:]
    assert "| MNIST, DPSUR | 1 claimed | 97.95 | 98.10 ± 0.14 | 2 | 1.00 | 1.00 | 1,246 |" in lines
    assert any("| 98.39 | 90.00 (an older form of it) | 1 |" in line for line in lines)
    assert "| MNIST, DPSUR | 3 claimed | 98.86 | not measured | 0 |  |  |  |" in lines
    assert all("MNIST" in line and "Fashion" not in line for line in lines)
