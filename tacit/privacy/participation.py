"""How far one record can move a stream of correlated releases, from the order of the batches.

A mechanism releases C·g + σz, where row t of g is the clipped sum of step t, C a public factor
with no negative entries and z standard normal. A record that takes part in the steps π, each time
with norm at most one, moves C·g by at most ‖Σ_{t∈π} C[:, t]‖, and by exactly that when its
contributions are equal. Everything here is the square of that norm, for the worst record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, product

import numpy as np
from numpy.typing import NDArray

from tacit.errors import ArgumentError

Order = Sequence[Sequence[int]]
Series = NDArray[np.float64]


def same_order(batches: int, steps: int) -> list[list[int]]:
    """Epoch after epoch the same `batches` in the same order, cut after `steps` steps.

    >>> same_order(3, 5)
    [[0, 1, 2], [0, 1]]
    """
    full, rest = divmod(steps, batches)
    return [list(range(batches))] * full + ([list(range(rest))] if rest else [])


def separation(order: Order) -> int:
    """The fewest steps between two uses of a batch; all steps where none is used twice.

    >>> separation([[0, 1, 2], [0, 1, 2]]), separation([[0, 1, 2], [2, 1, 0]])
    (3, 1)
    """
    last: dict[int, int] = {}
    found = sum(map(len, order))
    for step, batch in enumerate(chain(*order)):
        if batch in last:
            found = min(found, step - last[batch])
        last[batch] = step
    return found


def tree_growth(order: Order, restart_every: int = 0, completion: bool = False) -> Series:
    """Squared sensitivity of binary-tree aggregation after each step.

    A node is released when its last leaf is in. `restart_every` starts a new tree after so many
    epochs; with `completion` the old one is first filled up with empty leaves, so that all its
    nodes are released.

    >>> float(tree_growth(same_order(120, 1200))[-1])
    225.0
    """
    squared = np.zeros(1 + max(max(epoch, default=0) for epoch in order))
    grown: list[float] = []
    peak = 0.0
    trees = _trees(order, restart_every)
    for number, leaves in enumerate(trees):
        last = number + 1 == len(trees)
        filled = completed_size(len(leaves)) if completion and not last else len(leaves)
        for size, (batches, gains) in enumerate(_releases(leaves, filled), 1):
            squared[batches] += gains
            peak = max(peak, float(squared[batches].max(initial=0.0)))
            if size <= len(leaves):
                grown.append(peak)
    return np.array(grown)


def completed_size(leaves: int) -> int:
    """Leaves of the smallest full tree that holds so many.

    >>> completed_size(120)
    128
    """
    return 1 << max(0, leaves - 1).bit_length()


def _trees(order: Order, restart_every: int) -> list[NDArray[np.int64]]:
    """The batches of each tree, in order."""
    if restart_every < 0:
        raise ArgumentError(f"restart_every is {restart_every}; give epochs, or 0 for one tree")
    each = restart_every or len(order)
    parts = [order[start : start + each] for start in range(0, len(order), each)]
    return [np.concatenate([np.asarray(epoch, np.int64) for epoch in part]) for part in parts]


def _releases(leaves: NDArray[np.int64], filled: int) -> Iterator[tuple[NDArray[np.int64], Series]]:
    """For each leaf up to `filled`: the batches in nodes it completes, with Σ count² of each."""
    kinds = int(leaves.max()) + 1
    ends, batches, gains = [], [], []
    width = 1
    while width <= filled:
        node = np.arange(len(leaves)) // width
        node_of, times = np.unique(node * kinds + leaves, return_counts=True)
        end = (node_of // kinds + 1) * width
        released = end <= filled
        ends.append(end[released])
        batches.append((node_of % kinds)[released])
        gains.append(times[released].astype(np.float64) ** 2)
        width *= 2
    keys = np.concatenate(ends) * kinds + np.concatenate(batches)
    unique, place = np.unique(keys, return_inverse=True)
    summed = np.bincount(place, np.concatenate(gains)).astype(np.float64)
    bounds = np.searchsorted(unique // kinds, np.arange(1, filled + 2))
    for low, high in pairwise(bounds.tolist()):
        yield unique[low:high] % kinds, summed[low:high]


def banded_growth(order: Order, coefficients: Series) -> Series:
    """Squared sensitivity of a banded Toeplitz factor after each step, its rows so far counted.

    `coefficients` is the first column of the factor, none negative.
    """
    if (coefficients < 0).any():
        raise ArgumentError("a factor with negative coefficients has no proof here")
    if len(coefficients) <= separation(order):
        return _growth_of_disjoint_uses(order, coefficients)
    batches = np.concatenate([np.asarray(epoch, np.int64) for epoch in order])
    squared = np.zeros(int(batches.max()) + 1)
    grown = np.empty(len(batches))
    for step in range(len(batches)):
        reach = min(step + 1, len(coefficients))
        recent = batches[step - reach + 1 : step + 1]
        row = np.bincount(recent, coefficients[:reach][::-1], len(squared))
        squared += row**2
        grown[step] = squared.max()
    return grown


def _growth_of_disjoint_uses(order: Order, coefficients: Series) -> Series:
    """The same where no row of the factor meets two uses of a batch: squares simply add up."""
    column = coefficients**2
    uses: dict[int, list[int]] = {}
    for step, batch in enumerate(chain(*order)):
        uses.setdefault(batch, []).append(step)
    steps = sum(map(len, order))
    grown = np.zeros(steps)
    seen: set[tuple[int, ...]] = set()
    for places in uses.values():
        shift = tuple(place - places[0] for place in places)
        if shift in seen:
            continue
        seen.add(shift)
        gained = np.zeros(steps)
        for place in places:
            gained[place : place + len(column)] += column[: steps - place]
        np.maximum(grown, np.cumsum(gained), out=grown)
    return grown


def tree_worst_case(
    batches: int, steps: int, restart_every: int = 0, completion: bool = False
) -> float:
    """Squared sensitivity of the tree where a record may stand anywhere in every epoch: exact.

    >>> tree_worst_case(120, 120)
    7.0
    """
    each = (restart_every or -(-steps // batches)) * batches
    total = 0.0
    for start in range(0, steps, each):
        leaves = min(each, steps - start)
        filled = completed_size(leaves) if completion and start + each < steps else leaves
        total += max(_Places(batches, leaves, filled).best(0, completed_size(leaves)).values())
    return total


@dataclass(frozen=True)
class _Places:
    """Where a record may stand in one tree: once in every epoch of `batches` leaves."""

    batches: int
    leaves: int
    filled: int

    def best(self, start: int, width: int) -> dict[frozenset[int], float]:
        """The largest Σ count² over the released nodes within [start, start + width).

        Keyed by those epochs, among the ones that reach beyond, whose place lies inside.
        """
        stop = start + width
        if start >= self.leaves:
            return {frozenset(): 0.0}
        closed = self._epochs_within(start, stop)
        if width == 1:
            inner = {frozenset[int](): 0.0, frozenset([start // self.batches]): 0.0}
            newly = closed
        else:
            half = start + width // 2
            inner = _joined(self.best(start, width // 2), self.best(half, width // 2))
            newly = closed - self._epochs_within(start, half) - self._epochs_within(half, stop)
        found: dict[frozenset[int], float] = {}
        for places, value in inner.items():
            if newly <= places:
                reaching = places - newly
                count = len(closed) + len(reaching)
                gain = float(count) ** 2 if stop <= self.filled else 0.0
                found[reaching] = max(found.get(reaching, 0.0), value + gain)
        return found

    def _epochs_within(self, start: int, stop: int) -> frozenset[int]:
        end = -(-self.leaves // self.batches) if stop >= self.leaves else stop // self.batches
        return frozenset(range(-(-start // self.batches), end))


def _joined(
    low: dict[frozenset[int], float], high: dict[frozenset[int], float]
) -> dict[frozenset[int], float]:
    """Both halves of a node; an epoch that they share has its place in one of them."""
    joined: dict[frozenset[int], float] = {}
    for (a, x), (b, y) in product(low.items(), high.items()):
        if not a & b:
            joined[a | b] = max(joined.get(a | b, 0.0), x + y)
    return joined
