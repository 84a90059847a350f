"""Gradients that the compiled kernels measure in one call and add up in another."""

from __future__ import annotations

from collections.abc import Container, Mapping

from torch import Tensor

from tacit import native
from tacit.clipping.layers.contributions import Contribution, Rows
from tacit.clipping.layers.slots import Slot


class Together:
    """Those gradients of a micro-batch that are rows, or outer products of them.

    A call for every layer would take longer than what it computes, in all but wide layers.
    """

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._kernels = native.active()
        self._held: dict[str, tuple[Slot, Contribution, Rows]] = {}
        self._products: native.Products | None = None

    def take(self, slot: Slot, contribution: Contribution) -> bool:
        """Take the gradients of one parameter; False where they are not for the kernels."""
        if self._kernels is None or not slot.entire or slot.name in self._held:
            return False
        rows = contribution.rows()
        if rows is None or tuple(slot.size) != _shape(rows):
            return False
        self._held[slot.name] = (slot, contribution, rows)
        return True

    def meet(self, totals: Mapping[str, Tensor], unwritten: Container[str]) -> None:
        """Say where the sums go, and which of these totals hold nothing yet.

        A layer's weight and bias, whose gradients have the same rows of outputs, are taken as one.
        """
        found: list[native.Product] = []
        without_shift: dict[tuple[int, int], native.Product] = {}
        for slot, _, (inputs, outputs) in self._held.values():
            total, kept, group = totals[slot.name], slot.name not in unwritten, slot.group
            layer = (id(outputs), group)
            if inputs is not None:
                product = native.Product(outputs, group, inputs, total, kept)
                found.append(product)
                without_shift[layer] = product
            elif layer in without_shift:
                product = without_shift.pop(layer)
                product.shift, product.shift_kept = total, kept
            else:
                found.append(native.Product(outputs, group, shift=total, shift_kept=kept))
        if found:
            self._products = native.Products(found, len(found[0].g), self._groups)

    def squared_norms(self) -> Tensor | None:
        """Squared norms of every record, [records, groups], if there is anything here."""
        if self._kernels is None or self._products is None:
            return None
        return self._kernels.outer_squares(self._products)

    def silence(self, records: Tensor) -> None:
        """Make the gradients of the marked records zero; the totals have to be met again."""
        for name, (slot, contribution, _) in self._held.items():
            contribution.silence(records)
            rows = contribution.rows()
            assert rows is not None
            self._held[name] = (slot, contribution, rows)

    def sum_up(self, factors: Tensor, unwritten: set[str]) -> None:
        """Put the weighted sums where they go, and let go of the gradients."""
        if self._kernels is None or self._products is None:
            return
        self._kernels.outer_sums(self._products, factors.contiguous())
        unwritten.difference_update(self._held)
        self.clear()

    def clear(self) -> None:
        """Forget all gradients."""
        self._held.clear()
        self._products = None


def _shape(rows: Rows) -> tuple[int, ...]:
    """Of the sum of such gradients."""
    inputs, outputs = rows
    return outputs.shape[1:] if inputs is None else (outputs.shape[1], inputs.shape[1])
