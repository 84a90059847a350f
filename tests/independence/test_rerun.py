"""A record whose loss or gradient depends on its company is found, and ordinary models pass."""

import copy

import pytest
import torch
import torch.nn.functional as F
from mixing_models import (
    LENGTH,
    TOKENS,
    FaintestMean,
    FaintMean,
    FirstRecord,
    FixedLength,
    GradientOnly,
    HidesBehindZero,
    LargeBatches,
    RareGate,
    TrimsToLongest,
    averaged,
    balanced,
    hardest_only,
    rows,
    shifted,
    texts,
    vectors,
)
from torch import Tensor, nn

from tacit.clipping.contract import Batch, LossFunction
from tacit.clipping.fast import FastEngine
from tacit.clipping.rules import Flat
from tacit.errors import MixedRecordsError, ModelError
from tacit.independence.replacements import REPLACEMENTS, Vocabulary
from tacit.independence.rerun import Rerun
from tacit.models import build


def _compare(model: nn.Module, loss: LossFunction, batch: Batch, turn: int = 0) -> None:
    rerun = Rerun(model)
    rerun.compare(loss, batch, REPLACEMENTS, turn)
    rerun.compare_alone(loss, batch)


@pytest.mark.parametrize("turn", [0, 1, 2])
@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (TrimsToLongest(), texts(50)),
        (RareGate(), vectors(50)),
        (FaintMean(), vectors(50)),
        (FaintestMean(), vectors(50)),
        (GradientOnly(), vectors(50)),
        (HidesBehindZero(), vectors(50)),
        (LargeBatches(), vectors(50)),
        (FirstRecord(), vectors(50)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_models_that_mix_records_are_found(model: nn.Module, batch: Batch, turn: int) -> None:
    with pytest.raises(MixedRecordsError, match="influence can be bounded"):
        Rerun(model).compare(rows, batch, REPLACEMENTS, turn)


@pytest.mark.parametrize("loss", [hardest_only, averaged, balanced, shifted])
def test_losses_that_mix_records_are_found(loss: LossFunction) -> None:
    with pytest.raises(MixedRecordsError):
        _compare(nn.Linear(6, 3), loss, vectors(50))


def test_the_trimming_model_moves_a_sum_far_beyond_its_bound() -> None:
    """What the check is for: one long text among short ones moves the clipped sum by 20 bounds."""
    torch.manual_seed(0)
    model = TrimsToLongest()
    ids = torch.randint(1, TOKENS, (400, 1)) * (torch.arange(LENGTH) < 1)
    labels = torch.zeros(400, dtype=torch.int64)
    long = torch.ones(1, LENGTH, dtype=torch.int64), labels[:1]
    engine = FastEngine(model, Flat(1.0), deterministic=True)
    without = engine.clipped_sum(rows, [(ids, labels)], 1).vector
    batch = tuple(map(torch.cat, zip((ids, labels), long, strict=True)))
    moved = (engine.clipped_sum(rows, [batch], 1).vector - without).norm()
    assert moved > 20.0


def test_the_layer_is_named_where_the_difference_is_first_seen() -> None:
    with pytest.raises(MixedRecordsError, match="layer 'embedding'"):
        _compare(TrimsToLongest(), rows, texts(50))
    with pytest.raises(MixedRecordsError, match="layer 'linear'"):
        _compare(FaintMean(), rows, vectors(50))
    with pytest.raises(MixedRecordsError, match="the loss function or a backward pass"):
        _compare(nn.Linear(6, 3), hardest_only, vectors(50))


class _Masked(nn.Module):
    """Attention over the words of a text, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 16, padding_idx=0)
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(16, 2)

    def forward(self, ids: Tensor) -> Tensor:
        absent = ids == 0
        absent[:, 0] = False
        out: Tensor = self.head(
            self.encoder(self.embedding(ids), src_key_padding_mask=absent).mean(1)
        )
        return out


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(F.dropout(x + F.gelu(self.first(x)), 0.2, self.training))
        return out


@pytest.mark.parametrize("count", [2, 37, 64])
@pytest.mark.parametrize("turn", range(5))
@pytest.mark.parametrize("make", [FixedLength, _Masked, _Residual])
def test_models_that_keep_records_apart_pass(make: type[nn.Module], turn: int, count: int) -> None:
    torch.manual_seed(turn)
    model = make()
    _compare(model, rows, vectors(count) if make is _Residual else texts(count), turn)


@pytest.mark.parametrize("name", ["mlp", "lenet5", "gn-lenet5", "convnet"])
def test_kernels_keep_the_bits_of_a_row_whatever_the_others_are(name: str) -> None:
    images, labels = torch.randn(33, 1, 28, 28), torch.randint(0, 3, (33,))
    model = build(name, (1, 28, 28), 3)
    rerun = Rerun(model)
    for turn in range(3):
        rerun.compare(rows, (images, labels), REPLACEMENTS, turn)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_check_leaves_no_trace() -> None:
    model = _Masked().train()
    model.encoder.eval()
    before = copy.deepcopy(model.state_dict())
    modes = [m.training for m in model.modules()]
    state = torch.get_rng_state()
    _compare(model, rows, texts(20))
    assert torch.equal(torch.get_rng_state(), state)
    assert modes == [m.training for m in model.modules()]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(not m._forward_hooks for m in model.modules())


def test_views_of_a_record_stay_together() -> None:
    def centred_views(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        x = batch[0].view(-1, 2, 6)
        return rows(model, ((x - x.mean(1, keepdim=True)).flatten(0, 1), batch[1]))

    x, labels = (part.repeat_interleave(2, 0) for part in vectors(20))
    batch = (x + torch.randn_like(x), labels)
    Rerun(nn.Linear(6, 3), views=2).compare(centred_views, batch, REPLACEMENTS, 1)
    with pytest.raises(MixedRecordsError):
        Rerun(nn.Linear(6, 3)).compare(centred_views, batch, REPLACEMENTS, 1)


def test_other_random_numbers_cannot_be_checked_and_say_so() -> None:
    generator = torch.Generator().manual_seed(0)

    def noisy(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return rows(model, batch) * torch.rand(len(batch[0]), generator=generator)

    with pytest.raises(ModelError, match="two passes over the same batch differ"):
        Rerun(nn.Linear(6, 3)).compare(noisy, vectors(20), REPLACEMENTS, 0)


def test_a_model_that_fails_among_public_rows_is_named() -> None:
    def no_blanks(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        if bool((batch[0] == 0).all(1).any()):
            raise ValueError("blank")
        return rows(model, batch)

    with pytest.raises(ModelError, match=r"cannot be checked.*ValueError"):
        Rerun(nn.Linear(6, 3)).compare(no_blanks, vectors(20), REPLACEMENTS, 0)


def test_a_model_that_fails_on_one_record_is_named() -> None:
    def squeezing(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return F.cross_entropy(model(batch[0]).squeeze(), batch[1], reduction="none")

    with pytest.raises(ModelError, match="a batch of one record"):
        Rerun(nn.Linear(6, 3)).compare_alone(squeezing, vectors(20))


def test_replacements_keep_the_record_and_cover_every_length_and_token() -> None:
    ids, labels = texts(64)
    vocabulary = Vocabulary.of(TrimsToLongest())
    assert vocabulary == Vocabulary(TOKENS, 0)
    lengths, tokens = set(), set()
    for kind in REPLACEMENTS:
        replaced = kind.around((ids, labels), slice(3, 4), 0, vocabulary)
        assert torch.equal(replaced[0][3], ids[3]) and replaced[1][3] == labels[3]
        others = torch.cat([replaced[0][:3], replaced[0][4:]])
        assert not torch.equal(others, torch.cat([ids[:3], ids[4:]]))
        lengths |= set((others != 0).sum(1).tolist())
        tokens |= set(others.flatten().tolist())
    assert lengths == set(range(LENGTH + 1)) and tokens == set(range(TOKENS))


def test_replacements_of_floats_are_blank_alike_large_and_not_finite() -> None:
    x, labels = vectors(400)
    made = [
        kind.around((x, labels), slice(0, 1), 0, Vocabulary(2, 0))[0][1:] for kind in REPLACEMENTS
    ]
    assert not made[0].any()
    assert torch.equal(made[1], made[1][:1].expand_as(made[1])) and made[1].any()
    assert made[2].max() > 1e29 and made[2].min() < -1e29 and made[3].abs().max() > 1e29
    assert made[4].isnan().any() and made[4].isposinf().any() and made[4].isneginf().any()


@pytest.mark.parametrize("functional", [False, True])
def test_division_by_the_size_of_the_batch_is_found_behind_any_dropout(functional: bool) -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.dropout = nn.Linear(6, 3), nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            kept = F.dropout(x, 0.1, self.training) if functional else self.dropout(x)
            out: Tensor = self.linear(kept)
            return out

    def divided(model: nn.Module, batch: Batch) -> Tensor:
        return rows(model, batch) / len(batch[0])

    with pytest.raises(MixedRecordsError, match="join its batch"):
        Rerun(Dropped()).compare_alone(divided, vectors(50))


class _StandardisesOnce(nn.Module):
    """Keeps mean and deviation of the first batch it sees in plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.mean: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mean is None:
            self.mean = x.detach().mean(0)
        out: Tensor = self.linear(x - self.mean)
        return out


def test_what_a_model_keeps_of_the_first_batch_is_public() -> None:
    kept = []
    for scale in (1.0, 100.0):
        model, (x, y) = _StandardisesOnce(), vectors(50)
        Rerun(model).compare(rows, (scale * x, y), REPLACEMENTS, 0)
        kept.append(model.mean)
    assert torch.equal(kept[0], kept[1])


class _MixesInEvaluation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x if self.training else x - x.mean(0))
        return out


class _MixesByChance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x - x.mean(0) if float(torch.rand(1)) < 0.45 else x)
        return out


def test_mixing_in_evaluation_mode_or_behind_a_coin_is_found() -> None:
    batch = vectors(50)
    Rerun(_MixesInEvaluation()).compare(rows, batch, REPLACEMENTS, 0)
    with pytest.raises(MixedRecordsError):
        Rerun(_MixesInEvaluation()).compare(rows, batch, REPLACEMENTS, 0, evaluation=True)
    with pytest.raises(MixedRecordsError):
        Rerun(_MixesByChance()).compare(rows, batch, REPLACEMENTS, 0)
