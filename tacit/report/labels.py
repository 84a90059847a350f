"""Short names that tell the runs of a comparison apart, made from what differs between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import takewhile

from tacit.report import values
from tacit.report.groups import BUDGET, NAMES, Group, Member, apart, differing, gather

_FEW = 3  # with more settings that differ, a title says more than a list of them
_LONGEST = 64
_BETWEEN_PARTS = re.compile(r", (?![^(]*\))")  # commas, but not those in brackets


def labelled(members: Sequence[Member]) -> list[Group]:
    """All groups, each with a name of its own."""
    found = gather(members)
    names = _series_names([groups[0][0] for groups in found])
    return [
        Group(
            label=name if len(groups) == 1 else f"{name}, {_budget(group[0], groups)}",
            series_label=name,
            series=series,
            rank=rank,
            members=tuple(group),
        )
        for series, (name, groups) in enumerate(zip(names, found, strict=True))
        for rank, group in enumerate(groups)
    ]


def _series_names(series: Sequence[Member]) -> list[str]:
    """Method first, then model and data where they vary, then whatever else tells them apart."""
    varying = [aspect for aspect in _ASPECTS if len({aspect(one) for one in series}) > 1]
    names = [", ".join([_method(one), *(aspect(one) for aspect in varying)]) for one in series]
    for _, same in apart(range(len(series)), lambda i: names[i]):
        if len(same) > 1:
            for index, more in zip(same, _additions([series[i] for i in same]), strict=True):
                names[index] = f"{names[index]}, {more}"
    names = [shortened(name) for name in names]
    for _, same in apart(range(len(series)), lambda i: names[i]):
        if len(same) > 1:
            for number, index in enumerate(same, start=1):
                names[index] = f"{names[index]} ({number})"
    return names


def _additions(series: Sequence[Member]) -> list[str]:
    keys = differing(series, NAMES | BUDGET)
    titles = [one.run.title for one in series]
    if not keys or (len(keys) > _FEW and len(set(titles)) == len(titles)):
        return _own_parts(titles)
    return [", ".join(setting(key, one.settings.get(key)) for key in keys[:_FEW]) for one in series]


def _own_parts(titles: Sequence[str]) -> list[str]:
    """Titles without what all of them begin and end with, where something is left of each.

    >>> _own_parts(["LeNet-5 on MNIST, Table IV, pair 1", "LeNet-5 on MNIST, Table IV, pair 2"])
    ['pair 1', 'pair 2']
    """
    parts = [_BETWEEN_PARTS.split(title) for title in titles]
    before = _in_common(parts)
    after = _in_common([each[before:][::-1] for each in parts])
    own = [each[before : len(each) - after] for each in parts]
    return [", ".join(each) for each in own] if all(own) else list(titles)


def _in_common(rows: Sequence[Sequence[str]]) -> int:
    """How many items all rows begin with."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*rows, strict=False)))


def shortened(name: str) -> str:
    """A name of bearable length: whole words of its beginning and of its end, where names differ.

    >>> shortened("DP-SGD, " + "very " * 20 + "long title, pair 1")
    'DP-SGD, very very very very … very very long title, pair 1'
    """
    if len(name) <= _LONGEST:
        return name
    half = (_LONGEST - 3) // 2
    start, _, torn = name[: half + 1].rpartition(" ")
    cut, _, end = name[-half - 1 :].partition(" ")
    return f"{start or torn[:half]} … {end or cut[-half:]}"


def setting(key: str, value: object) -> str:
    """A setting in few words; a text speaks for itself.

    >>> setting("training.learning_rate", 0.5), setting("privacy.relation", "replace-one")
    ('learning rate 0.5', 'replace-one')
    """
    if isinstance(value, str) and value:
        return value
    if key == "privacy.delta":
        return f"δ = {values.delta(value)}"
    return f"{key.rpartition('.')[2].replace('_', ' ')} {shown(value)}"


def shown(value: object) -> str:
    """The value of a setting as text."""
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "none"
    if isinstance(value, float):
        return f"{value:.12g}"
    return values.plain(value)


def _budget(member: Member, groups: Sequence[Sequence[Member]]) -> str:
    budgets = {str(group[0].settings.get("privacy.epsilon")) for group in groups}
    if len(budgets) == len(groups):
        return f"ε ≤ {shown(member.settings.get('privacy.epsilon'))}"
    return f"noise {shown(member.run.certificate.get('noise_multiplier'))}"


def _method(member: Member) -> str:
    return values.method(member.run.certificate.get("method"))


def _model(member: Member) -> str:
    return values.plain(member.run.metrics.get("model"))


def _data(member: Member) -> str:
    return values.plain(member.run.metrics.get("data"))


_ASPECTS: tuple[Callable[[Member], str], ...] = (_model, _data)
