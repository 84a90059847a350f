"""Gradients that the compiled kernels measure in one call and add up in another."""

from __future__ import annotations

from torch import Tensor

from tacit import native
from tacit.clipping.layers.contributions import Contribution, Outer, zeroed
from tacit.clipping.layers.slots import Slot
from tacit.clipping.layers.totals import Totals


class Together:
    """Those gradients of a micro-batch that are rows, or outer products of them.

    A call for every layer would take longer than what it computes, in all but wide layers.
    """

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._kernels = native.active()
        self._held: dict[str, tuple[Slot, Outer]] = {}
        self._products: native.Products | None = None

    def take(self, slot: Slot, contribution: Contribution) -> bool:
        """Take the gradients of one parameter; False where they are not for the kernels."""
        if self._kernels is None or not slot.entire or slot.name in self._held:
            return False
        outer = contribution.outer()
        if outer is None or slot.size != _shape(*outer):
            return False
        self._held[slot.name] = slot, outer
        return True

    def meet(self, totals: Totals) -> None:
        """Say where the sums go.

        A layer's weight and bias, whose gradients have the same rows of outputs, are taken as one.
        """
        found: list[native.Product] = []
        without_shift: dict[tuple[int, ...], int] = {}
        for slot, (x, g) in self._held.values():
            start, kept, group = totals.start(slot.name), totals.holds(slot.name), slot.group
            layer = (group, g.tensor.data_ptr(), *g[1:])
            if x is not None:
                without_shift[layer] = len(found)
                found.append(native.Product(g, group, x, start, kept))
            elif layer in without_shift:
                place = without_shift.pop(layer)
                found[place] = native.Product(*found[place][:-2], start, kept)
            else:
                found.append(native.Product(g, group, shift_at=start, shift_kept=kept))
        if found:
            records = found[0].g.records
            self._products = native.Products(found, totals.vector, records, self._groups)

    def squared_norms(self) -> tuple[Tensor, bool] | None:
        """Squared norms of every record, [records, groups], and whether all are finite, if there
        is anything here."""
        if self._kernels is None or self._products is None:
            return None
        return self._kernels.outer_squares(self._products)

    def silence(self, records: Tensor) -> None:
        """Make the gradients of the marked records zero; the totals have to be met again."""
        for name, (slot, (x, g)) in self._held.items():
            self._held[name] = (
                slot,
                (None if x is None else _zeroed(x, records), _zeroed(g, records)),
            )

    def sum_up(self, factors: Tensor, totals: Totals) -> None:
        """Put the weighted sums where they go, and let go of the gradients."""
        if self._kernels is None or self._products is None:
            return
        self._kernels.outer_sums(self._products, factors.contiguous())
        totals.written(self._held)
        self.clear()

    def clear(self) -> None:
        """Forget all gradients."""
        self._held.clear()
        self._products = None


def _shape(x: native.Rows | None, g: native.Rows) -> tuple[int, ...]:
    """Of the sum of such gradients."""
    return (g.width,) if x is None else (g.width, x.width)


def _zeroed(rows: native.Rows, records: Tensor) -> native.Rows:
    quiet = native.rows_of(zeroed(rows.tensor, records))
    assert quiet is not None
    return quiet
