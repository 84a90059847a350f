"""The leaderboard: what is shown, in which order, and which run is the best within a budget."""

from typing import Any

from accuracy_suite import audited, leaderboard
from accuracy_suite.stored import Summary
from stored_runs import seeds

from tacit.papers.index import Item, Paper, Row


def proven(name: str, epsilon: float, *accuracies: float, **more: Any) -> Summary:
    return seeds(name, *accuracies, proven={"add-or-remove-one": epsilon}, **more)


def finding(recipe: str, epsilon: float, proven: float | None, **more: Any) -> dict[str, Any]:
    found = {"attack": "canaries", "epsilon": epsilon, "proven": proven, "claimed": None}
    return {"recipe": recipe, "method": "dpsgd", "finding": found | more}


def test_rows_are_sorted_by_epsilon_as_shown_and_then_by_accuracy() -> None:
    runs = [
        proven("002/table1-row3", 3.0, 0.99),
        proven("002/table1-row1", 1.0, 0.8),
        proven("002/table1-row2", 0.9999, 0.9),
        seeds("002/table2-row1", 0.999, relation=None, proven={}),
    ]
    text = leaderboard.page(runs, [], [], {})
    names = [line.split("`")[1] for line in text.splitlines() if line.endswith("` |")]
    wanted = ["002/table1-row2", "002/table1-row1", "002/table1-row3", "002/table2-row1"]
    assert [name for name in names if name.startswith("002")] == wanted
    assert "| 1.00 | add-or-remove-one | 80.00 | 1 | DP-SGD | 0.50 | not audited |" in text
    assert "| 1.5 min | a machine, 2 threads | `002/table1-row1` |" in text
    assert "## IMDb\n\nNothing was measured yet." in text


def test_the_best_keeps_within_the_budget_protects_whole_records_and_has_three_seeds() -> None:
    good = proven("mnist --epsilon 1", 1.0, 0.9, 0.9, 0.9)
    beyond = proven("mnist --epsilon 3", 1.0001, 0.99, 0.99, 0.99)
    once = proven("002/table1-row1", 0.5, 0.99)
    features = seeds(
        "000/mnist-one-time",
        *(0.99, 0.99, 0.99),
        relation="replace-features",
        proven={"replace-features": 0.5},
    )
    assert leaderboard.best([good, beyond, once, features], 1.0) is good
    assert leaderboard.best([good, beyond, once, features], 3.0) is beyond
    assert leaderboard.best([once, features], 3.0) is None
    text = leaderboard.page([good, beyond], [], [], {})
    assert "| MNIST | 90.00 ± 0.00: `mnist --epsilon 1` (ε = 1.00, add-or-remove-one) |" in text
    assert "| IMDb | not measured | not measured | not measured |" in text


def test_runs_of_another_form_of_a_recipe_are_named_but_not_shown() -> None:
    older = seeds("002/table1-row1", 0.9, 0.9, 0.9, recipe_digest="other")
    text = leaderboard.page([older], [], [], {})
    assert "so they are not shown here: `002/table1-row1`." in text
    assert "90.00" not in text


def test_what_two_cores_cannot_do_is_named() -> None:
    item = Item(name="figure9", title="much", too_long="it takes days")
    row = Row(what="a row", recipe="digits")
    quick = Item(name="figure8", title="little", rows=(row,))
    paper = Paper(number="009", title="A paper", items=(item, quick))
    text = leaderboard.page([], [], [paper], {"digits": 24 * 60})
    assert text.rstrip().endswith("- 009/figure9: it takes days.")
    text = leaderboard.page([], [], [paper], {"digits": 48 * 60})
    assert text.rstrip().endswith("- 009/figure8 (a row): about 48 hours a run.")


def test_an_audit_is_shown_for_the_recipe_at_the_same_epsilon_only() -> None:
    run = proven("mnist --epsilon 3", 3.0, 0.9)
    audits = [
        finding("mnist --epsilon 3", 1.239, 3.0),
        finding("mnist --epsilon 3", 2.5, 4.0),
        finding("mnist --epsilon 1", 2.9, 3.0),
    ]
    assert audited.of_run(run, audits) == "≥ 1.23 (canaries)"
    assert audited.of_run(run, audits[1:]) == "not audited"


def test_an_audit_of_the_method_says_what_was_promised_for_what_it_attacked() -> None:
    found = audited.of_method("dpsgd", None, [finding("other", 2.5, 4.0), finding("x", 1.0, 3.0)])
    assert found == "≥ 2.50 (canaries) where 4.00 is proven"
    refuted = [finding("other", 2.5, None, claimed=0.98)]
    assert audited.of_method("dpsgd", None, refuted).endswith("0.98 is claimed and nothing proven")
    assert audited.of_method("dpftrl", None, refuted) == "not audited"
