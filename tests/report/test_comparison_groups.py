"""Runs are grouped by what decides them, named by what differs, and never flattered."""

import statistics
from typing import Any

import pytest
from comparison_runs import member

from tacit.report import values
from tacit.report.comparison_table import as_json, columns, promises, warnings
from tacit.report.curves import accuracy_curve, epsilon_curve, levels, reached
from tacit.report.groups import Group, Member
from tacit.report.labels import labelled


def only(*members: Member) -> Group:
    (group,) = labelled(members)
    return group


def cell(group: Group, key: str) -> str:
    (column,) = [column for column in columns([group]) if column.key == key]
    return column.text(group)


def test_batch_clipping_beside_others_is_said_to_keep_less_signal() -> None:
    both = labelled([member("a"), member("b", method="batch-clipping")])
    assert any("less signal" in text for text in warnings(both))
    assert warnings(labelled([member("b", method="batch-clipping")])) == []


def test_runs_that_differ_only_in_seed_and_title_are_one_group() -> None:
    group = only(*(member(str(i), 0.9 + i / 100, seed=i, title=f"No. {i}") for i in range(3)))
    assert group.seeds == [0, 1, 2]
    assert group.accuracy == statistics.mean([0.9, 0.91, 0.92])
    assert group.spread == pytest.approx(0.01)
    assert cell(group, "accuracy") == "91.00% ± 1.01"
    assert cell(group, "runs") == "3"


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 2.0},
        {"delta": 1e-6},
        {"relation": "replace-one"},
        {"method": "dpftrl"},
        {"model": "convnet"},
        {"data": "mnist"},
        {"method__clip": 0.5},
    ],
)
def test_any_other_difference_makes_another_group(change: dict[str, Any]) -> None:
    groups = labelled([member("a"), member("b", **change)])
    assert [len(group.members) for group in groups] == [1, 1]
    assert groups[0].label != groups[1].label


def test_budgets_of_one_recipe_form_a_series_in_rising_order() -> None:
    groups = labelled(
        [member("b", epsilon=3.0), member("a", epsilon=1.0), member("c", model="cnn")]
    )
    assert [group.label for group in groups] == [
        "DP-SGD, mlp, ε ≤ 1",
        "DP-SGD, mlp, ε ≤ 3",
        "DP-SGD, cnn",
    ]
    assert [(group.series, group.rank) for group in groups] == [(0, 0), (0, 1), (1, 0)]
    assert groups[0].series_label == "DP-SGD, mlp"


def test_labels_say_what_differs_and_are_never_the_same() -> None:
    few = labelled([member("a", method__clip=0.1), member("b", method__clip=1.0)])
    assert [group.label for group in few] == ["DP-SGD, clip 0.1", "DP-SGD, clip 1"]
    many = {f"x__{i}": 1 for i in range(5)}
    titled = labelled([member("a", title="One", **many), member("b", title="Two")])
    assert [group.label for group in titled] == ["DP-SGD, One", "DP-SGD, Two"]
    same = labelled([member("a", **many), member("b")])
    assert len({group.label for group in same}) == 2


def test_long_titles_keep_what_tells_them_apart() -> None:
    many = {f"x__{i}": 1 for i in range(5)}
    common = "LeNet-5 on MNIST, at the budget of paper 002 (its Table IV, which has three), "
    two = labelled([member("a", title=f"{common}pair 1", **many), member("b", title=f"{common}2")])
    assert [group.label for group in two] == ["DP-SGD, pair 1", "DP-SGD, 2"]
    words = " ".join(f"word{i}" for i in range(30))
    long = labelled(
        [member("a", title=f"A {words} one", **many), member("b", title=f"A {words} b")]
    )
    assert [group.label[-3:] for group in long] == ["one", "9 b"]
    assert all(len(group.label) <= 64 and "word0" in group.label for group in long)


def test_of_several_runs_the_largest_epsilon_is_shown_rounded_up() -> None:
    a, b = member("a", epsilon=1.0, claimed=0.7), member("b", epsilon=1.0, claimed=0.70001)
    group = only(a, b)
    assert (group.proven, group.claimed, group.audited) == (1.0, 0.70001, None)
    assert cell(group, "epsilon_claimed") == "0.71"
    assert cell(group, "epsilon_audited") == "not audited"
    found = only(member("c", audited=0.4567))
    assert cell(found, "epsilon_audited") == "≥ 0.45"


def test_numbers_for_programs_are_the_ones_that_are_shown() -> None:
    groups = labelled([member("a", 0.91234), member("b", 0.5, None, method="plain", claimed=None)])
    private, plain = (as_json(group, groups) for group in groups)
    assert private["accuracy"] == 0.91234 and private["epsilon_proven"] == 1.0
    assert private["promise"] == {
        "delta": 1e-5,
        "relation": "add-or-remove-one",
        "unit": "one record",
    }
    assert private["steps"] == 100 and private["directories"] == ["a"]
    assert plain["epsilon_proven"] is None and plain["promise"] is None
    assert cell(groups[1], "epsilon_proven") == "no guarantee"
    assert any("no privacy guarantee" in text for text in warnings(groups))


@pytest.mark.parametrize("change", [{"delta": 1e-6}, {"relation": "replace-one"}])
def test_other_promises_are_marked_as_not_comparable(change: dict[str, Any]) -> None:
    groups = labelled([member("a"), member("b", **change)])
    assert len(promises(groups)) == 2
    (text,) = warnings(groups)
    assert text.startswith("Not comparable in ε")
    for group in groups:
        assert str(group.promise) in text
        assert as_json(group, groups)["comparable_with"] == []
    (column,) = [column for column in columns(groups) if column.key == "promise"]
    assert "not comparable with B" in column.text(groups[0])
    assert warnings(labelled([member("a"), member("b", epsilon=2.0)])) == []


def test_other_records_are_marked_as_not_comparable() -> None:
    (text,) = warnings(labelled([member("a"), member("b", data="mnist")]))
    assert text.startswith("Not comparable in accuracy")


def test_a_repeated_seed_and_a_contradiction_are_said() -> None:
    twice = warnings([only(member("a", seed=1), member("b", 0.8, seed=1))])
    assert any("not independent" in text for text in twice)
    refuted = warnings([only(member("a", audited=1.5))])
    assert any("more than the 1.0 that was proven" in text for text in refuted)


def test_curves_are_means_over_runs_and_the_largest_epsilon() -> None:
    group = only(member("a", 0.8, seed=0), member("b", 0.9, seed=1))
    last = accuracy_curve(group)[-1]
    assert (last.step, last.epoch, last.seconds, last.runs) == (100, 10, 20, 2)
    assert last.accuracy == pytest.approx(0.85) and last.spread == pytest.approx(0.0707, abs=1e-4)
    assert epsilon_curve(group)[0] == (0.0, 0.0)
    assert epsilon_curve(group)[-1] == pytest.approx((10.0, 1.0))


def test_time_to_accuracy_counts_the_runs_that_got_there() -> None:
    slow, fast = only(member("a", 0.62)), only(member("b", 0.95, seed=1), member("c", 0.5, seed=2))
    assert levels([slow, fast])[0] <= 0.62
    found = reached(fast, 0.6)
    assert (found.runs, found.of, found.step, found.seconds) == (1, 2, 70, 14)
    assert reached(slow, 0.7).runs == 0


def test_spreads_are_rounded_up_and_noise_down() -> None:
    assert values.points(0.0123400001) == "1.24"
    assert values.noise(44.2987963199) == "44.2987" and values.noise(3.0) == "3"
    assert values.noise(1e6) == "1000000" and values.noise(0.0) == "0"
    assert values.points(0.0) == "0.00" and values.points(None) == "—"
