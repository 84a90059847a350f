"""Models that put rows elsewhere by their content: found again in every batch, or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from test_fast_support import CLIP, assert_agrees, batch_of, by_loop, squared_loss
from test_fast_support import both_paths as both_paths
from test_fast_support import one_thread as one_thread
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tacit.clipping.contract import Batch
from tacit.clipping.fast import FastEngine
from tacit.clipping.rules import Flat
from tacit.errors import ModelError

pytestmark = pytest.mark.filterwarnings("ignore:.*per record")


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)


class Packed(Layers):
    """Only tokens that are there go through the first layer, one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        there = x[..., 0] > 0
        spread = x.new_zeros(x.shape).masked_scatter(there[..., None], self.a(x[there]))
        found: Tensor = self.b(spread.tanh().sum(1))
        return found


class Sorted(Layers):
    """The second layer sees the rows in order, and they are put back behind it."""

    def __init__(self, how: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        order = torch.argsort(x[:, 0], stable=True)
        h = self.how(torch.tanh(self.a(x)), order)
        return self.how(self.b(h), torch.argsort(order))


WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index": lambda h, order: h[order],
    "index_select": lambda h, order: h.index_select(0, order),
    "gather": lambda h, order: h.gather(0, order[:, None].expand(-1, h.shape[1])),
    "take_along_dim": lambda h, order: torch.take_along_dim(h, order[:, None], 0),
    "index_copy": lambda h, order: torch.zeros_like(h).index_copy(0, torch.argsort(order), h),
    "index_add": lambda h, order: torch.zeros_like(h).index_add(0, torch.argsort(order), h),
    "lookup": lambda h, order: F.embedding(order, h),
    "assignment": lambda h, order: assigned(h, torch.argsort(order)),
}


def assigned(h: Tensor, places: Tensor) -> Tensor:
    out = torch.zeros_like(h)
    out[places] = h
    return out


def tokens(*lengths: int) -> Tensor:
    x = torch.randn(len(lengths), 3, 4, dtype=torch.float64)
    x[..., 0] = -1
    for row, length in zip(x, lengths, strict=True):
        row[:length, 0] = 1
    return x


def assert_all_agree(model: nn.Module, *inputs: Tensor) -> None:
    engine = FastEngine(model.double(), Flat(CLIP))
    for x in inputs:
        assert_agrees(engine, model, batch_of(x))


def test_tokens_that_are_packed() -> None:
    """Four tokens of two records may be two each, or three and one: shapes do not tell."""
    assert_all_agree(Packed(), tokens(3, 3), tokens(3, 1), tokens(2, 2))
    assert_all_agree(Packed(), tokens(1, 1, 1), tokens(2, 1, 0))


class OnPacked(Layers):
    """A layer on what torch packs for recurrent networks: times first, records by their length."""

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x[..., 0] > 0).sum(1).cpu()
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        through = packed._replace(data=torch.tanh(self.a(packed.data)))
        back, _ = pad_packed_sequence(through, batch_first=True, total_length=x.shape[1])
        found: Tensor = self.b(back.sum(1))
        return found


def test_sequences_that_torch_packs() -> None:
    assert_all_agree(OnPacked(), tokens(2, 2, 2), tokens(3, 2, 1), tokens(3, 3, 3))


@pytest.mark.parametrize("way", WAYS)
def test_rows_in_another_order_in_every_batch(way: str) -> None:
    """The first batch is in order as it is, and shows nothing."""
    x = torch.randn(6, 4, dtype=torch.float64)
    in_order = x[torch.argsort(x[:, 0])]
    assert_all_agree(Sorted(WAYS[way]), in_order, x, x.flip(0))


class Picking(Layers):
    """Picks by content, but never another row: nothing has to be looked for again."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        best = h.argmax(1)
        picked = h.gather(1, best[:, None]) + h[torch.arange(len(x)), best][:, None]
        found: Tensor = self.b(h + picked + h.sort(1).values + h[:, [3, 0, 1, 2]])
        return found


def test_picking_within_rows_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Picking().double()
    engine, batch = FastEngine(model, Flat(CLIP)), batch_of(torch.randn(5, 4).double())
    engine.clipped_sum(squared_loss, [batch], 1)

    def probed(*_: object) -> None:
        raise AssertionError("looked where records lie")

    monkeypatch.setattr("tacit.clipping.fast.probe", probed)
    assert_agrees(engine, model, batch)


class Catching(Layers):
    """Goes another way where anything fails."""

    def __init__(self) -> None:
        super().__init__()
        self.sorting = False

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        try:
            if self.sorting:
                order = torch.argsort(x[:, 0])
                return self.b(h[order])[torch.argsort(order)]
        except Exception:
            return self.b(h) * 2
        found: Tensor = self.b(h)
        return found


def test_a_model_that_catches_errors_does_not_see_ours() -> None:
    model = Catching().double()
    engine = FastEngine(model, Flat(CLIP))
    for model.sorting in (False, False, True, True):
        assert_agrees(engine, model, batch_of(torch.randn(5, 4).double()))


def test_rows_that_are_mixed_behind_all_layers_at_a_later_step_are_refused() -> None:
    """What is known of the layers from earlier batches says nothing of where gradients go."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    batch = batch_of(torch.randn(20, 4).double())
    engine = FastEngine(model, Flat(CLIP))

    def mixed(model: nn.Module, batch: Batch) -> Tensor:
        outputs = model(batch[0])
        return (outputs - outputs[batch[0][:, 0].argsort()]).square().sum(1)

    engine.clipped_sum(squared_loss, [batch], 1)
    engine.clipped_sum(squared_loss, [batch], 1)
    with pytest.raises(ModelError, match="depends on other records"):
        engine.clipped_sum(mixed, [batch], 1)


def test_rows_that_are_only_sorted_behind_all_layers_are_looked_for_again() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    batch = batch_of(torch.randn(20, 4).double())
    engine = FastEngine(model, Flat(CLIP))

    def there_and_back(model: nn.Module, batch: Batch) -> Tensor:
        order = batch[0][:, 0].argsort()
        return squared_loss(model, batch)[order][order.argsort()]

    for loss in (squared_loss, there_and_back, squared_loss):
        found = engine.clipped_sum(loss, [batch], 1).vector
        expected = by_loop(model, Flat(CLIP), batch)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * CLIP)


class Experts(nn.Module):
    """Each record goes through one of two layers, by the sign of its first number."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.a, self.b, self.head = make(), make(), nn.LazyLinear(2)

    def forward(self, x: Tensor) -> Tensor:
        first = x.flatten(1)[:, 0] > 0
        found = torch.cat([self.a(x[first]).flatten(1), self.b(x[~first]).flatten(1)])
        order = torch.cat([first.nonzero()[:, 0], (~first).nonzero()[:, 0]])
        scores: Tensor = self.head(found[torch.argsort(order)])
        return scores


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Linear(4, 3), (4,)),
        (lambda: nn.Linear(4, 3), (2, 4)),
        (lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), (4,)),
        (lambda: nn.Conv2d(2, 4, 3), (2, 5, 5)),
        (lambda: nn.GroupNorm(2, 4), (4, 3, 3)),
        (lambda: nn.LayerNorm(4), (4,)),
    ],
    ids=["linear", "positions", "chain", "conv", "group-norm", "layer-norm"],
)
@pytest.mark.parametrize("before", [0, 6], ids=["at once", "after a batch"])
def test_a_branch_that_no_record_takes(
    make: Callable[[], nn.Module], shape: tuple[int, ...], before: int
) -> None:
    """A batch of one record leaves a branch without rows; so does one that takes one side."""
    model = Experts(make).double()
    model(torch.randn(3, *shape, dtype=torch.float64))
    inputs = [torch.randn(n, *shape, dtype=torch.float64) for n in (before, 1, 1, 3) if n]
    inputs[-1].abs_()
    assert_all_agree(model, *inputs, -inputs[-1])
