"""Models that use parameters, rows or buffers in ways that look like something else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_fast_support import CLIP, batch_of, by_loop, fast, largest_error, squared_loss
from test_fast_support import both_paths as both_paths
from test_fast_support import one_thread as one_thread
from torch import Tensor, nn

from tacit.clipping.contract import Batch
from tacit.clipping.engines import engine_for
from tacit.clipping.fast import FastEngine
from tacit.clipping.rules import Automatic, Flat
from tacit.config import Recipe
from tacit.errors import ModelError
from tacit.methods.parts import Parts


def total(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch[0]).reshape(len(batch[0]), -1).sum(1)


class TimeFirst(nn.Module):
    """Positions and rows folded into one dimension, the rows varying fastest."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(0, 1)
        y = self.inner(y.flatten(0, 1)).unflatten(0, y.shape[:2])
        return y.transpose(0, 1).tanh().sum(1)


@pytest.mark.parametrize("lengths", [(1, 3), (3, 1, 2), (4, 3)])
def test_where_records_lie_is_found_again_for_other_shapes(lengths: tuple[int, ...]) -> None:
    model = TimeFirst().double()
    engine = FastEngine(model, Flat(CLIP), deterministic=True)
    for length in lengths:
        batch = batch_of(torch.randn(4, length, 4, dtype=torch.float64))
        found = engine.clipped_sum(squared_loss, [batch], 1).vector
        torch.testing.assert_close(found, by_loop(model, Flat(CLIP), batch, 1, squared_loss))


class Windows(nn.Module):
    """A matrix of overlapping windows of one vector."""

    def __init__(self, embedded: bool) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(6))
        self.embedded = embedded

    def forward(self, x: Tensor) -> Tensor:
        windows = self.vector.unfold(0, 3, 1)
        if self.embedded:
            return F.embedding(x.abs().long() % 4, windows).sum(1)
        return F.linear(x, windows)


@pytest.mark.filterwarnings("ignore:Windows")
@pytest.mark.parametrize("embedded", [False, True])
def test_views_that_overlap_are_not_taken_for_weights_of_their_own(embedded: bool) -> None:
    assert largest_error(Windows(embedded), 5 * torch.randn(5, 3)) <= 1


def test_normalised_gradients_too_short_to_measure_are_not_made_too_long() -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return model(batch[0]).flatten() * batch[1]

    model = nn.Linear(3, 1, bias=False)
    for size in (1e-24, 1e-20, 1e-13, 1e-6):
        batch = (torch.ones(1, 3), torch.tensor([size]))
        engine = FastEngine(model, Automatic(CLIP, 0.0))
        assert float(engine.clipped_sum(loss, [batch], 1).vector.norm()) <= CLIP * 1.001


class Gated(nn.Module):
    """Time first, and silent for every record that is not infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = nn.Linear(4, 3)
        self.plain = nn.Linear(4, 1)
        with torch.no_grad():
            self.silent.bias.fill_(-5.0)
            self.silent.weight.fill_(1.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.silent(x.transpose(0, 1)).relu().sum((0, 2))
        return y * x[:, 0, 0] + self.plain(x[:, 0]).squeeze(1)


def test_an_infinite_record_that_hides_where_records_lie_silences_itself_alone() -> None:
    model, records = Gated(), -torch.rand(4, 4, 4)
    records[3] = torch.inf
    with_it = fast(model, Flat(CLIP), (records,), loss=total)
    without = fast(model, Flat(CLIP), (records[:3],), loss=total)
    torch.testing.assert_close(with_it, without)
    assert float(without.norm()) > 0


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Accumulated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.cumsum(0)


@pytest.mark.parametrize("mixing", [Centred(), Accumulated()])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_inputs_that_are_mixed_are_refused_also_with_dropout(
    mixing: nn.Module, dropout: float
) -> None:
    model = nn.Sequential(mixing, nn.Linear(4, 8), nn.Dropout(dropout), nn.Linear(8, 2))
    with pytest.raises(ModelError, match="remove what mixes records"):
        fast(model, Flat(CLIP), (torch.randn(6, 4),), loss=total)


def test_dropout_alone_is_not_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2))
    before = torch.get_rng_state()
    found = fast(model, Flat(CLIP), (torch.randn(6, 4),), loss=total)
    assert bool(found.any()) and not torch.equal(before, torch.get_rng_state())


def test_a_loss_divided_by_the_rows_of_a_batch_is_refused() -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return total(model, batch) / len(batch[0])

    with pytest.raises(ModelError, match="leave the batch"):
        fast(nn.Linear(4, 2), Flat(CLIP), (torch.randn(6, 4),), loss=loss)


class Attended(nn.Module):
    """A mask as long as the batch has rows, and dropout that hides the difference."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 4))
        self.dropout = nn.Dropout(1e-9)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        asked = torch.einsum("btd,de->bte", x, self.matrix)
        return self.dropout((asked @ x.mT + mask).softmax(-1) @ x)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attended = Attended()

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[1]
        return self.attended(x, torch.full((size, size), -1e9, dtype=x.dtype).triu(1))


@pytest.mark.filterwarnings("ignore:Attended", "ignore:Masked")
@pytest.mark.parametrize("records", [4, 5])
def test_a_mask_with_as_many_rows_as_the_batch_is_not_cut_up(records: int) -> None:
    assert largest_error(Masked(), torch.randn(records, 4, 4)) <= 1


class Pruned(nn.Module):
    """Its weight is a product with a buffer that autograd keeps for later."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.register_buffer("kept", (torch.rand(3, 4) > 0.5).float())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.kept)


@pytest.mark.filterwarnings("ignore:Pruned")
def test_buffers_that_autograd_keeps_are_not_written_to() -> None:
    assert largest_error(Pruned(), torch.randn(5, 4)) <= 1


class WithPenalty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.einsum("bd,de->be", x, self.matrix), self.matrix.square().sum()


class FirstOf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = WithPenalty()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(x)[0]
        return output


@pytest.mark.filterwarnings("ignore:WithPenalty", "ignore:FirstOf")
def test_a_module_without_a_rule_may_return_something_without_rows() -> None:
    assert largest_error(FirstOf(), torch.randn(5, 4)) <= 1


class ClassToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(size=(len(x), 4)), x], 1)


def test_expand_takes_its_size_by_name() -> None:
    assert largest_error(ClassToken(), torch.randn(5, 3)) <= 1


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_parts_in_torchscript_may_be_frozen() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    for parameter in scripted.parameters():
        parameter.requires_grad_(False)
    model = nn.Sequential(scripted, nn.Linear(4, 2))
    engine, batch = FastEngine(model, Flat(CLIP)), batch_of(torch.randn(3, 4), dtype=torch.float32)
    found = [engine.clipped_sum(squared_loss, [batch], 1).vector for _ in range(2)]
    torch.testing.assert_close(found[0], found[1])


def test_parameters_of_two_types_and_parameters_frozen_later_are_named() -> None:
    with pytest.raises(ModelError, match=r"torch.float32 on cpu, torch.float64 on cpu"):
        FastEngine(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), Flat(CLIP))
    model = nn.Linear(2, 2)
    engine = FastEngine(model, Flat(CLIP))
    model.bias.requires_grad_(False)
    with pytest.raises(ModelError, match="'bias' was frozen"):
        engine.clipped_sum(squared_loss, [batch_of(torch.randn(3, 2))], 1)


def test_a_recipes_memory_ceiling_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    ceilings = []

    def noted(*_: object, memory_ceiling: int, **__: object) -> None:
        ceilings.append(memory_ceiling)

    monkeypatch.setattr("tacit.methods.parts.engine_for", noted)
    parts = Parts.__new__(Parts)
    object.__setattr__(parts, "recipe", Recipe().with_settings(memory_ceiling=64))
    parts.engine(nn.Linear(2, 2), Flat(CLIP))
    assert ceilings == [64 << 20]


class RowOfBiases(nn.Module):
    """A linear layer whose bias has a dimension too many."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 4))
        self.bias = nn.Parameter(torch.randn(1, 5))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class OneSlope(nn.Module):
    """A rectifier whose slope has no dimension at all."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.slope = nn.Parameter(torch.tensor(0.2))

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(self.inner(x), self.slope)


class Mirrored(nn.Module):
    """Inputs that torch keeps with their signs still to be changed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.imag(torch.complex(x, x).conj())[:, :1])


@pytest.mark.parametrize("made", [RowOfBiases, OneSlope, Mirrored])
def test_odd_shapes_and_signs_in_single_precision(made: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = made(), torch.randn(6, 4)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch[0]) - 1).square().sum(1)

    engine = FastEngine(model, Flat(CLIP))
    expected = engine_for(model, Flat(CLIP), "loop").clipped_sum(loss, [(x,)], 1).vector
    for _ in range(2):
        found = engine.clipped_sum(loss, [(x,)], 1).vector
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * CLIP)
