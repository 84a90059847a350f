"""The table of a comparison, defined once for the page, the terminal and JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.report import values
from tacit.report.doubts import contradictions
from tacit.report.groups import Group, Promise, apart

NOT_AUDITED = "not audited"
NOT_CLAIMED = "not claimed"
NO_GUARANTEE = "no guarantee"


@dataclass(frozen=True)
class Column:
    """One column: its value for programs and for sorting, its text for people."""

    key: str
    title: str
    value: Callable[[Group], Any]
    text: Callable[[Group], str]
    words: bool = False
    in_terminal: bool = True
    brief: Callable[[Group], str] | None = None
    brief_title: str = ""

    def in_brief(self, group: Group) -> str:
        """The text for a terminal, where there is little room."""
        return (self.brief or self.text)(group)


def columns(groups: Sequence[Group]) -> list[Column]:
    """The columns for these groups; what an ε refers to is one of them only where it differs."""
    found = promises(groups)
    same = len(found) < 2

    def promise(group: Group) -> str:
        return _promise(group.promise, found)

    def letter(group: Group) -> str:
        return values.UNKNOWN if group.promise is None else _letter(found.index(group.promise))

    every = [
        Column("group", "Group", lambda g: g.label, lambda g: g.label, words=True),
        Column("epsilon_claimed", "ε claimed", lambda g: g.claimed, _claimed),
        Column("epsilon_proven", "ε proven", lambda g: g.proven, _proven),
        Column("epsilon_audited", "ε audited", lambda g: g.audited, _audited),
        Column("promise", "ε holds at", promise, promise, words=True, brief=letter),
        Column("accuracy", "Accuracy", lambda g: g.accuracy, _accuracy),
        Column("runs", "Runs", lambda g: len(g.members), lambda g: str(len(g.members))),
        Column("steps", "Steps", lambda g: g.steps, lambda g: values.count(g.steps)),
        Column("noise_multiplier", "Noise", lambda g: g.noise, lambda g: values.noise(g.noise)),
        _time("training_seconds", "Training time"),
        _time("inference_seconds", "Inference time", in_terminal=False),
        _word("method", "Method", lambda g: g.method),
        _word("model", "Model", lambda g: g.model),
        _word("data", "Data", lambda g: g.data),
    ]
    return [column for column in every if column.key != "promise" or not same]


def as_json(group: Group, groups: Sequence[Group]) -> dict[str, Any]:
    """The row of a group with all digits, and what lies behind it."""
    promise = group.promise
    row = {column.key: column.value(group) for column in columns(groups)}
    return row | {
        "promise": promise
        and {"delta": promise.delta, "relation": promise.relation} | {"unit": promise.unit},
        "comparable_with": [
            other.label for other in groups if other is not group and comparable(group, other)
        ],
        "accuracy_spread": group.spread,
        "accuracies": group.accuracies,
        "seeds": group.seeds,
        "evaluated_on": group.evaluated_on,
        "directories": [str(member.path) for member in group.members],
    }


def comparable(one: Group, other: Group) -> bool:
    """Whether both ε and both accuracies mean the same thing."""
    same_records = (one.data, one.evaluated_on) == (other.data, other.evaluated_on)
    return one.promise == other.promise and same_records


def promises(groups: Sequence[Group]) -> list[Promise]:
    """The different things that an ε refers to here."""
    return list(dict.fromkeys(g.promise for g in groups if g.promise))


def warnings(groups: Sequence[Group]) -> list[str]:
    """In plain words: what must not be compared, and what must not be relied on."""
    found = []
    different = promises(groups)
    if len(different) > 1:
        counted = [sum(group.promise == promise for group in groups) for promise in different]
        listed = "; ".join(
            f"{_letter(i)}: {promise} ({count} of {len(groups)} rows)"
            for i, (promise, count) in enumerate(zip(different, counted, strict=True))
        )
        found.append(
            "Not comparable in ε: these runs do not promise the same thing, so an ε of one kind "
            f"says nothing about an ε of another. {listed}. The table says which is which, and "
            "figures never mix them. To compare methods, train all of them with the same "
            "privacy.delta and privacy.relation in their recipes."
        )
    measured = apart(
        [group for group in groups if group.accuracies],
        lambda group: f"{group.data} ({group.evaluated_on})",
    )
    if len(measured) > 1:
        found.append(
            "Not comparable in accuracy: it was not measured on the same records. "
            f"{_listed(measured)} Figures never mix them."
        )
    methods = {group.first.run.certificate.get("method") for group in groups}
    if "batch-clipping" in methods and len(methods) > 1:
        found.append(
            "Batch clipping bounds the gradient of a whole mini-set, other methods that of every "
            "record: at equal noise it keeps up to as many times less signal as a mini-set has "
            "records. Compare accuracy at equal proven ε."
        )
    for group in groups:
        if group.promise is None:
            found.append(
                f"{group.label}: no privacy guarantee. Nothing limits what these weights reveal."
            )
        doubts = dict.fromkeys(d for member in group.members for d in contradictions(member.run))
        found += [f"{group.label}: {doubt}" for doubt in doubts]
        if len(set(group.seeds)) < len(group.seeds):
            found.append(
                f"{group.label}: a seed appears twice, so its runs are not independent and their "
                "spread is too small."
            )
    return found


def _listed(cells: Sequence[tuple[str, list[Group]]]) -> str:
    return " ".join(f"{what}: {'; '.join(g.label for g in cell)}." for what, cell in cells)


def _promise(promise: Promise | None, found: Sequence[Promise]) -> str:
    if promise is None:
        return NO_GUARANTEE
    if len(found) == 1:
        return str(promise)
    own = found.index(promise)
    others = ", ".join(_letter(i) for i in range(len(found)) if i != own)
    return f"{_letter(own)}: {promise}; not comparable with {others}"


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else str(index)


def _claimed(group: Group) -> str:
    return NOT_CLAIMED if group.claimed is None else values.claimed(group.claimed)


def _proven(group: Group) -> str:
    return NO_GUARANTEE if group.proven is None else values.proven(group.proven)


def _audited(group: Group) -> str:
    return NOT_AUDITED if group.audited is None else f"≥ {values.audited(group.audited)}"


def _accuracy(group: Group) -> str:
    if group.accuracy is None:
        return "not measured"
    around = "" if group.spread is None else f" ± {values.points(group.spread)}"
    return f"{values.percent(group.accuracy)}{around}"


def _word(key: str, title: str, value: Callable[[Group], str]) -> Column:
    return Column(key, title, value, value, words=True, in_terminal=False)


def _time(key: str, title: str, in_terminal: bool = True) -> Column:
    def seconds(group: Group) -> float | None:
        return group.metric(key)

    def text(group: Group) -> str:
        return values.duration(seconds(group))

    return Column(key, title, seconds, text, in_terminal=in_terminal, brief_title="Time")
