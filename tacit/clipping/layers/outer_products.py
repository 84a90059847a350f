"""Gradients of linear layers: a record's is a sum of outer products, one per position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from tacit import native
from tacit.clipping.layers.choice import Algorithm, Chooser
from tacit.clipping.layers.contributions import (
    Contribution,
    Dense,
    Mergeable,
    Outer,
    exact,
    raised,
    scaled,
    squared_rows,
    summed_products,
    widened,
    zeroed,
)

_CACHE = 16 << 20
_PRODUCT = 8
"""Bytes of an inner product."""
_WORTH_KEEPING = 4
"""Gradients are kept until the factors are known if they take at most so many times the memory
of the inputs and output gradients that they come from."""


class OuterProducts(Mergeable):
    """Record r's gradient is Σ over positions p of outputs[r, p] ⊗ inputs[r, p].

    Where there is one position it may be left out of what is given: [records, width] instead of
    [records, positions, width]. `single` are outputs given like that, whose norms are then taken
    once for this and for who else needs them.
    """

    def __init__(
        self, inputs: Tensor, outputs: Tensor, chooser: Chooser, single: Dense | None = None
    ) -> None:
        self._inputs, self._outputs = inputs, outputs
        self._chooser = chooser
        self._single = single
        self._written_out: Dense | None = None

    @property
    def inputs(self) -> Tensor:
        """[records, positions, width]."""
        return self._inputs.unsqueeze(1) if self._inputs.dim() == 2 else self._inputs

    @property
    def outputs(self) -> Tensor:
        """[records, positions, height]."""
        return self._outputs.unsqueeze(1) if self._outputs.dim() == 2 else self._outputs

    def squared_norms(self) -> Tensor:
        if self._inputs.dim() == 2:
            single = self._single or Dense(self._outputs)
            return _never_less(self._inputs, squared_rows(self._inputs)).mul_(
                _never_less(self._outputs, single.squared_norms().clone())
            )
        shape = (*self.inputs.shape[1:], self.outputs.shape[2])
        kind = (self.inputs.dtype, self.inputs.device, torch.get_num_threads())
        algorithms = self._algorithms(*shape)
        return self._chooser.pick(("linear", *shape, *kind), len(self.inputs), algorithms).run()

    def exact(self) -> OuterProducts:
        """The same in double precision."""
        return OuterProducts(exact(self._inputs), exact(self._outputs), self._chooser)

    def outer(self) -> Outer | None:
        if self._single is None or self._written_out is not None:
            return None
        outputs, inputs = self._single.outer(), native.rows_of(self._inputs)
        return None if outputs is None or inputs is None else (inputs, outputs[1])

    def _algorithms(self, positions: int, width: int, height: int) -> list[Algorithm]:
        records, item = self.inputs.shape[0], self.inputs.element_size()
        products = positions * width * height
        written, grams = item * width * height, _PRODUCT * positions**2

        def few(records: int) -> OuterProducts:
            return OuterProducts(self.inputs[:records], self.outputs[:records], self._chooser)

        def write_out() -> Tensor:
            self._written_out = Dense(self.per_record())
            self._inputs = self._outputs = self._inputs.new_empty(0)
            return self._written_out.squared_norms()

        def try_write_out(records: int) -> None:
            dense = Dense(few(records).per_record())
            dense.squared_norms()
            dense.add_weighted(*scratch(records))

        def try_measure(way: Callable[[OuterProducts], Tensor], records: int) -> None:
            products = few(records)
            way(products)
            products.add_weighted(*scratch(records))

        def scratch(records: int) -> tuple[Tensor, Tensor]:
            return self.inputs.new_ones(records), self.inputs.new_empty(height, width)

        algorithms = [
            Algorithm(
                "gram",
                2 * positions**2 * (width + height) + products,
                2 * grams * min(records, _block(2 * grams)),
                False,
                self._by_gram,
                partial(try_measure, OuterProducts._by_gram),
            ),
            Algorithm(
                "written out twice",
                2 * products + 4 * width * height,
                written * min(records, _block(written)),
                False,
                self._by_writing_out,
                partial(try_measure, OuterProducts._by_writing_out),
            ),
        ]
        if width * height <= _WORTH_KEEPING * positions * (width + height):
            cost = products + 8 * width * height
            kept = records * written
            algorithms.append(Algorithm("written out", cost, kept, True, write_out, try_write_out))
        return algorithms

    def _by_gram(self) -> Tensor:
        step = _block(2 * _PRODUCT * self.inputs.shape[1] ** 2)
        found = []
        for inputs, outputs in zip(self.inputs.split(step), self.outputs.split(step), strict=True):
            inputs, outputs = exact(inputs), exact(outputs)
            gram = torch.bmm(inputs, inputs.mT).mul_(torch.bmm(outputs, outputs.mT))
            terms = inputs.shape[2] + outputs.shape[2]
            found.append(summed_products(gram, terms, self.inputs.dtype))
        return torch.cat(found)

    def _by_writing_out(self) -> Tensor:
        step = _block(self.inputs.element_size() * self.inputs.shape[2] * self.outputs.shape[2])
        found = []
        for inputs, outputs in zip(self.inputs.split(step), self.outputs.split(step), strict=True):
            across, down = (torch.linalg.vector_norm(widened(t), dim=2) for t in (inputs, outputs))
            squares = squared_rows(torch.bmm(outputs.mT, inputs))
            found.append(raised(squares, across.mul_(down).sum(1), inputs.shape[1]))
        return torch.cat(found)

    def add_weighted(self, factors: Tensor, total: Tensor) -> None:
        if self._written_out is not None:
            self._written_out.add_weighted(factors, total)
        else:
            self._put(factors, total, 1)

    def write_weighted(self, factors: Tensor, total: Tensor) -> None:
        if self._written_out is not None:
            self._written_out.write_weighted(factors, total)
        else:
            self._put(factors, total, 0)

    def _put(self, factors: Tensor, total: Tensor, kept: int) -> None:
        inputs, outputs = self._inputs, self._outputs
        if inputs.shape[-1] < outputs.shape[-1]:
            inputs = scaled(inputs, factors)
        else:
            outputs = scaled(outputs, factors)
        if inputs.dim() == 3:
            inputs, outputs = inputs.flatten(0, 1), outputs.flatten(0, 1)
        total.addmm_(outputs.t(), inputs, beta=kept)

    def per_record(self) -> Tensor:
        return torch.bmm(self.outputs.mT, self.inputs)

    def silence(self, records: Tensor) -> None:
        if self._written_out is not None:
            self._written_out.silence(records)
            return
        self._inputs = zeroed(self._inputs, records)
        self._outputs = zeroed(self._outputs, records)
        self._single = None

    def merged(self, others: Sequence[Contribution]) -> Contribution:
        alike = [self, *(other for other in others if isinstance(other, OuterProducts))]
        inputs = torch.cat([one.inputs for one in alike], 1)
        return OuterProducts(inputs, torch.cat([one.outputs for one in alike], 1), self._chooser)


def _never_less(rows: Tensor, squares: Tensor) -> Tensor:
    """Squared norms of rows, with what squares too small for their type have lost: a row of tiny
    numbers may meet one of huge ones."""
    return squares.add_(rows.shape[1] * torch.finfo(squares.dtype).tiny)


def _block(bytes_per_record: int) -> int:
    """Records to take at once so that intermediate results stay in cache."""
    return max(1, _CACHE // bytes_per_record)
