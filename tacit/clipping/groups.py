"""Groups of parameters that are clipped together; fixed before training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from tacit.errors import ArgumentError, ModelError


@dataclass(frozen=True)
class Groups:
    """Parameter names, group by group.

    >>> Groups.layers(["0.weight", "0.bias", "2.weight"]).members
    (('0.weight', '0.bias'), ('2.weight',))
    """

    members: tuple[tuple[str, ...], ...]

    @classmethod
    def layers(cls, names: Iterable[str]) -> Groups:
        """One group for each module that holds parameters of its own."""
        return cls(tuple(tuple(g) for _, g in groupby(names, lambda n: n.rpartition(".")[0])))

    @classmethod
    def tensors(cls, names: Iterable[str]) -> Groups:
        """One group for each parameter."""
        return cls(tuple((name,) for name in names))

    def __len__(self) -> int:
        return len(self.members)

    def numbers(self, names: Sequence[str]) -> list[int]:
        """The group of each name."""
        number = {name: i for i, group in enumerate(self.members) for name in group}
        missing = [name for name in names if name not in number]
        if missing or len(number) != len(names):
            raise ModelError(
                "the groups of layers do not match the model's trainable parameters"
                f" ({', '.join(missing) or 'some are gone'}); make the groups from this model"
            )
        return [number[name] for name in names]

    def merged(self, norms: Sequence[float], count: int) -> Groups:
        """At most `count` groups of similar norm, cut where the norms' logarithms lie furthest
        apart (paper 003, B.2: few groups cost less than many layers).

        >>> Groups((("a",), ("b",), ("c",))).merged([1.0, 90.0, 1.1], 2).members
        (('a', 'c'), ('b',))
        """
        if count < 1:
            raise ArgumentError(f"groups is {count}; there must be at least one")
        if len(norms) != len(self):
            raise ArgumentError(f"{len(norms)} norms were given for {len(self)} groups of layers")
        logs = [math.log(max(norm, 1e-30)) for norm in norms]
        order = sorted(range(len(self)), key=lambda i: logs[i])
        gaps = sorted(range(1, len(order)), key=lambda i: logs[order[i - 1]] - logs[order[i]])[
            : count - 1
        ]
        cuts = [0, *sorted(gaps), len(order)]
        parts = [sorted(order[a:b]) for a, b in pairwise(cuts)]
        return Groups(
            tuple(tuple(n for i in part for n in self.members[i]) for part in sorted(parts))
        )
