"""Proven sums of models whose per-record gradients are materialised (docs/proofs/sums.md)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from changed_records import (
    CLASSES,
    INF,
    NAN,
    RECORDS,
    Case,
    assert_only_own_contributions_move,
    assert_sum_of_contributions,
    thread_count,
    whole_units,
)
from torch import Tensor, nn

from tacit import native
from tacit.clipping.contract import Batch, ClippingRule, Layout
from tacit.clipping.exact import sums as sums_module
from tacit.clipping.exact import uses as uses_module
from tacit.clipping.exact.engine import ExactEngine
from tacit.clipping.exact.grid import FACTOR_SLACK, Grid
from tacit.clipping.exact.stages.stage import NotRowwiseError
from tacit.clipping.exact.sums import ExactSum
from tacit.clipping.exact.uses import DenseUse
from tacit.clipping.fast import FastEngine
from tacit.clipping.groups import Groups
from tacit.clipping.rules import Automatic, Flat, Layerwise
from tacit.losses import cross_entropy
from tacit.models.networks import TemperedSigmoid, build
from tacit.models.normalised_networks import ResidualBlock, group_norm


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 2, bias=False),
        TemperedSigmoid(),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


def channels_last() -> nn.Module:
    """What the library's own networks look like, whose kernels lie channels last."""
    model = images()
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return model


def steps_and_groups() -> nn.Module:
    return nn.Sequential(
        nn.ZeroPad2d((1, 0, 2, 0)),
        nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=(2, 1), padding_mode="reflect"), nn.Tanh()
        ),
        nn.Conv2d(4, 6, 2, dilation=2, padding=1, groups=2),
        nn.AvgPool2d(2, 1),
        nn.Flatten(2),
        nn.Flatten(),
        nn.Linear(72, CLASSES),
    )


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.GroupNorm(2, 4),
        nn.SiLU(),
        nn.Dropout(0.2),
        nn.AdaptiveAvgPool2d(2),
        nn.LayerNorm((4, 2, 2)),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


def last_and_normalised() -> nn.Module:
    model = normalised()
    model[0].weight.data = model[0].weight.contiguous(memory_format=torch.channels_last)
    return model


def lines() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (2, 6)),
        nn.Conv1d(2, 4, 4, padding="same"),
        nn.InstanceNorm1d(4, affine=True),
        nn.GELU(),
        nn.MaxPool1d(2, padding=1),
        nn.Conv1d(4, 2, 3, stride=2, padding=1, padding_mode="circular"),
        nn.AdaptiveMaxPool1d(2),
        nn.Flatten(),
        nn.Linear(4, CLASSES),
    )


def positions() -> nn.Module:
    """Linear layers at several positions of a record."""
    return nn.Sequential(
        nn.Unflatten(1, (4, 3)),
        nn.Linear(3, 5),
        nn.ReLU(),
        nn.LayerNorm(5),
        nn.Linear(5, 2, bias=False),
        nn.RMSNorm(2),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


def residual() -> nn.Module:
    return nn.Sequential(
        ResidualBlock(2, 4, 2, group_norm),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, CLASSES),
    )


def winograd() -> nn.Module:
    """Wide enough for Winograd's method there, back and for gradients."""
    model = nn.Sequential(
        nn.Conv2d(2, 32, 1),
        nn.Tanh(),
        nn.Conv2d(32, 32, 3, padding=1, bias=False),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )
    for layer in (model[0], model[2]):
        layer.weight.data = layer.weight.contiguous(memory_format=torch.channels_last)
    return model


IMAGE = (2, 6, 6)


def made(make: Callable[[], nn.Module], shape: tuple[int, ...] = IMAGE) -> Case:
    return Case(make, shape)


IMAGES = made(images)
CASES = (
    IMAGES,
    made(channels_last),
    made(steps_and_groups),
    made(normalised),
    made(last_and_normalised),
    made(residual),
    Case(lines),
    Case(positions),
)
WINOGRAD = made(winograd, (2, 8, 8))


@pytest.mark.parametrize(
    ("levels", "threads", "micro_batch"),
    [(0, 2, RECORDS), (1, 1, 4), (3, 1, RECORDS), (3, 2, 4)],
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_changed_record_moves_the_sum_by_its_own_contributions_alone(
    case: Case, levels: int, threads: int, micro_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with native.limited_to(levels), thread_count(threads):
        assert_only_own_contributions_move(case, Flat(0.7), micro_batch, monkeypatch)


def test_the_same_by_winograds_method(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_only_own_contributions_move(WINOGRAD, Flat(0.7), RECORDS, monkeypatch)


@pytest.mark.parametrize("levels", [0, 3])
@pytest.mark.parametrize(
    "rule",
    [
        Flat(50.0),
        Automatic(0.5, stabiliser=0.0),
        Layerwise(
            Groups((("0.weight", "0.bias"), ("3.weight",), ("6.weight", "6.bias"))),
            (0.2, 1.5, 0.01),
        ),
    ],
    ids=lambda rule: f"{type(rule).__name__} {rule.bounds}",
)
def test_every_rule_bounds_every_contribution(
    rule: ClippingRule, levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(2)
    features, labels = IMAGES.batch()
    features = features * torch.logspace(-12, 12, RECORDS)[:, None, None, None]
    with native.limited_to(levels):
        assert_sum_of_contributions(images(), rule, (features, labels), monkeypatch)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("case", [*CASES, WINOGRAD], ids=str)
@pytest.mark.parametrize(("levels", "clip"), [(0, 100.0), (3, 0.1)])
def test_sums_agree_with_the_fast_engine(case: Case, levels: int, clip: float) -> None:
    torch.manual_seed(2)
    model = case.make().eval()
    with native.limited_to(levels):
        assert_agreement(model, Flat(clip), case.batch())


def assert_agreement(model: nn.Module, rule: ClippingRule, batch: Batch) -> None:
    exact = ExactEngine(model, rule, cross_entropy, RECORDS)
    fast = FastEngine(model, rule, deterministic=True)
    found = exact.clipped_sum(cross_entropy, [batch], 1).vector
    expected = fast.clipped_sum(cross_entropy, [batch], 1).vector.double()
    assert (found - expected).norm() < 1e-4 * expected.norm()


def test_frozen_layers_are_passed_through() -> None:
    torch.manual_seed(2)
    model, batch = images(), IMAGES.batch()
    model[0].requires_grad_(False)
    model[3].requires_grad_(False)
    assert ExactEngine(model, Flat(1.0), cross_entropy, RECORDS).layers == ("6",)
    assert_agreement(model, Flat(1.0), batch)


@pytest.mark.parametrize("levels", [0, 3])
@pytest.mark.parametrize("case", [IMAGES, Case(positions)], ids=str)
def test_gradients_that_are_computed_again_are_the_same(
    case: Case, levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums are those of contributions whether gradients were kept or not, in blocks or at once."""
    torch.manual_seed(3)
    model, batch = case.make(), case.batch()

    def total() -> Tensor:
        engine = ExactEngine(model, Flat(0.7), cross_entropy, RECORDS)
        return engine.clipped_sum(cross_entropy, [batch], 1).vector

    with native.limited_to(levels):
        for block in (1, 1 << 10, 1 << 20):
            monkeypatch.setattr(uses_module, "_BLOCK", block)
            kept = total()
            monkeypatch.setattr(sums_module, "_KEPT", 0)
            assert torch.equal(total(), kept)
            assert_sum_of_contributions(model, Flat(0.7), batch, monkeypatch)
            monkeypatch.undo()


@pytest.mark.parametrize("levels", [0, 1, 3])
def test_norms_of_materialised_gradients_are_taken_in_double_precision(levels: int) -> None:
    """Also where squares overflow or vanish in single precision."""
    torch.manual_seed(4)
    gradients = torch.randn(6, 1000) * torch.tensor([[1e25], [1e-25], [1.0], [INF], [NAN], [0.0]])
    rule = Automatic(1.0, stabiliser=0.0)
    layout = Layout(("weight",), (torch.Size((1000,)),), (0,))
    with native.limited_to(levels):
        total = ExactSum(layout, rule, RECORDS)
        factors = total.add([DenseUse.of("weight", gradients)])[:, 0]
    norms = gradients.double().square().sum(1).sqrt()
    assert factors[0] * norms[0] == pytest.approx(FACTOR_SLACK, rel=1e-12)
    assert factors[2] * norms[2] == pytest.approx(FACTOR_SLACK, rel=1e-12)
    assert factors[1] > 0 and factors[1] * norms[1] <= 1
    assert factors[3:5].tolist() == [0, 0]
    grid = Grid.of(rule.bounds, RECORDS)
    each = [whole_units(gradients[r], float(factors[r]), grid, 0) for r in (0, 1, 2)]
    assert total.vector.tolist() == [sum(column) for column in zip(*each, strict=True)]


def test_blocks_cover_all_records_and_follow_from_the_shape() -> None:
    for records, elements in ((1, 1), (7, 5_000_000), (300, 20_000), (256, 2_400)):
        use = DenseUse("weight", records, (elements,), (0,), lambda block: torch.empty(0))
        rows = [r for block in use.blocks for r in range(block.start, block.stop)]
        assert rows == list(range(records))
        most = max(block.stop - block.start for block in use.blocks)
        assert most == 1 or most * elements * 4 <= 8 << 20


def test_the_librarys_own_convolutional_networks_are_covered() -> None:
    grey, colour = (1, 28, 28), (3, 32, 32)
    for name, shape in (
        *(("lenet5", grey), ("tempered-cnn", grey), ("tempered-cnn", colour), ("convnet", colour)),
        *(("feature-cnn", colour), ("convnet5", colour), ("convnet5-gn", colour)),
        *(("gn-lenet5", grey), ("resnet18-gn", colour)),
    ):
        model = build(name, shape, CLASSES)
        ExactEngine(model, Flat(1.0), cross_entropy, 10).check(torch.zeros(1, *shape))
    with pytest.raises(NotRowwiseError, match="BatchNorm"):
        ExactEngine(build("convnet5-bn", colour, CLASSES), Flat(1.0), cross_entropy, 10)


def test_layers_that_would_not_keep_rows_apart_are_refused() -> None:
    """Some modules take a batch for one record without a batch dimension."""
    for model, shape in (
        (nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(2, 2)), (1, 3)),
        (nn.Sequential(nn.LayerNorm((1, 3)), nn.Linear(3, 2)), (3,)),
        (nn.Sequential(nn.ZeroPad2d(1), nn.Linear(5, 2)), (3,)),
        (nn.Sequential(nn.MaxPool2d(2), nn.Linear(2, 2)), (4, 4)),
        (nn.Sequential(nn.InstanceNorm1d(1, affine=True), nn.Linear(3, 2)), (3,)),
        (nn.Sequential(nn.Conv1d(2, 2, 2, padding="same"), nn.Flatten()), (3,)),
        (nn.Sequential(nn.Flatten(-2), nn.Linear(3, 2)), (3,)),
        (nn.Sequential(nn.Unflatten(-2, (1, 1)), nn.Linear(3, 2)), (3,)),
        (nn.Sequential(nn.Dropout2d(), nn.Linear(3, 2)), (2, 3)),
    ):
        engine = ExactEngine(model, Flat(1.0), cross_entropy, 10)
        with pytest.raises(NotRowwiseError, match="dimensions"):
            engine.check(torch.zeros(1, *shape))
