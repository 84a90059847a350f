"""Tables that are looked up in unusual ways: padded, rewritten, shared by all records."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_fast_support import CLIP, fast, largest_error
from test_fast_support import both_paths as both_paths
from test_fast_support import one_thread as one_thread
from torch import Tensor, nn

from tacit.clipping.contract import Batch
from tacit.clipping.layers.embedding import TableRows
from tacit.clipping.rules import Flat
from tacit.errors import ModelError


def total(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch[0]).reshape(len(batch[0]), -1).sum(1)


class FrozenTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4, max_norm=0.1).requires_grad_(False)
        self.head = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            found = self.table(tokens)
        return self.head(found)


def test_a_frozen_table_that_rewrites_itself_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'table' has max_norm=0\.1"):
        fast(FrozenTable(), Flat(CLIP), (torch.randint(0, 5, (3, 4)),), loss=total)


class Padded(nn.Module):
    """No rule covers the product, so the table runs record by record with it."""

    def __init__(self, lookup: str) -> None:
        super().__init__()
        self.lookup = lookup
        self.table = nn.Embedding(5, 4, padding_idx=0)
        self.bag = nn.EmbeddingBag(5, 4, padding_idx=1, mode="sum")
        self.matrix = nn.Parameter(torch.randn(4, 2))

    def forward(self, tokens: Tensor) -> Tensor:
        if self.lookup == "module":
            rows = self.table(tokens)
        elif self.lookup == "function":
            rows = F.embedding(tokens, self.table.weight, -3)
        else:
            rows = self.bag(tokens).unsqueeze(1)
        return torch.einsum("btd,de->be", rows + 1, self.matrix).tanh()


@pytest.mark.filterwarnings("ignore:Padded", "ignore:There is a performance drop")
@pytest.mark.parametrize("lookup", ["module", "function", "bag"])
def test_padding_gets_no_gradient_in_a_module_without_a_rule(lookup: str) -> None:
    assert largest_error(Padded(lookup), torch.randint(0, 5, (6, 7))) <= 1


@pytest.mark.filterwarnings("ignore:Rewritten")
def test_a_table_that_rewrites_itself_is_refused_in_a_module_without_a_rule() -> None:
    class Rewritten(Padded):
        def forward(self, tokens: Tensor) -> Tensor:
            rows = F.embedding(tokens, self.table.weight, max_norm=1.0)
            return torch.einsum("btd,de->be", rows, self.matrix).tanh()

    with pytest.raises(ModelError, match="max_norm"):
        fast(Rewritten("own"), Flat(CLIP), (torch.randint(0, 5, (3, 4)),), loss=total)


class Positions(nn.Module):
    """Positions that are looked up once for all records, and changed before they are used."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(9, 4), nn.Embedding(8, 4)
        self.change = change

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.places(torch.arange(tokens.shape[1]))
        if self.change == "scaled":
            places *= 3.0
        elif self.change == "first removed":
            places[0] = 0
        return (self.words(tokens) + places).tanh()


@pytest.mark.filterwarnings("ignore:Positions")
@pytest.mark.parametrize("change", ["none", "scaled", "first removed"])
def test_positions_may_be_changed_before_they_are_added(change: str) -> None:
    assert largest_error(Positions(change), torch.randint(0, 9, (5, 6))) <= 1


@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("positions", "width", "size"), [(64, 2048, 50), (9, 2, 100_000), (1, 3, 5)]
)
def test_rows_of_more_records_than_a_block_holds(
    positions: int, width: int, size: int, constant: bool, padding: int
) -> None:
    """Whatever comes for the padding token, nothing of it is measured or added."""
    torch.manual_seed(positions)
    records = 12
    tokens = torch.randint(0, 5, (records, positions)) * (size // 5)
    tokens[:, 0] = 2
    shape = (records, 1 if constant else positions, width)
    g = torch.randn(shape, dtype=torch.float64).expand(-1, positions, -1)
    if padding >= 0 and not constant:
        g = g.masked_fill((tokens == padding).unsqueeze(2), torch.inf)
    factors = torch.rand(records, dtype=torch.float64)
    expected = TableRows(tokens, g, size, padding).per_record()
    assert expected.isfinite().all() and bool(expected[:, 2].any()) == (padding < 0)
    rows = TableRows(tokens, g, size, padding)
    torch.testing.assert_close(rows.squared_norms(), expected.square().sum((1, 2)))
    found = torch.ones(size, width, dtype=torch.float64)
    rows.add_weighted(factors, found)
    torch.testing.assert_close(found - 1, torch.tensordot(factors, expected, 1))
