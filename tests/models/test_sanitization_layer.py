"""The sanitization layer: bounds, noise of the stated size, masks, no key in copies."""

import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import nn

from tacit.errors import ArgumentError, ModelError
from tacit.models import SanitizationLayer, build, with_sanitization
from tacit.models.sanitization import Split
from tacit.models.validate import check
from tacit.noise.source import RandomSource
from tacit.privacy.sanitized import Range, Sanitizer

ROWS, WIDTH = 400, 40


def seeded(clip: float = 0.5, **settings: Any) -> SanitizationLayer:
    layer = SanitizationLayer(clip=clip)
    layer.use(Sanitizer(WIDTH, **settings), clip, RandomSource.from_seed(3))
    return layer


@pytest.mark.parametrize(
    ("range_", "low", "high"), [("positive", 0.0, 0.5), ("symmetric", -0.5, 0.5)]
)
def test_evaluation_clips_and_adds_nothing(range_: str, low: float, high: float) -> None:
    layer = seeded(noise=2.0, range=range_).eval()
    x = torch.linspace(-3, 3, 2 * WIDTH).view(2, WIDTH)
    assert torch.equal(layer(x), x.clamp(low, high))


def test_a_ball_keeps_directions_and_bounds_norms() -> None:
    layer = seeded(noise=1.0, range="ball").eval()
    x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(layer(x).norm(dim=1), torch.full((8,), 0.5), atol=1e-6)
    assert torch.allclose(layer(x / 100), x / 100)


@pytest.mark.parametrize("clip", [1e-3, 0.5, 300.0])
def test_no_row_leaves_its_ball_however_little_it_lies_outside(clip: float) -> None:
    """Rows of all lengths, most of them within 2 % of the bound, where a slack would show."""
    layer = seeded(clip=clip, noise=1.0, range="ball").eval()
    near = 1 + torch.linspace(-0.02, 0.02, 1001)
    lengths = clip * torch.cat([near, torch.logspace(-6, 12, 1000)])
    directions = torch.randn(len(lengths), WIDTH, generator=torch.Generator().manual_seed(0))
    x = directions / directions.norm(dim=1, keepdim=True) * lengths[:, None]
    out = layer(x).double().norm(dim=1)
    assert float(out.max()) <= clip * (1 + 1e-6)
    expected = torch.minimum(x.double().norm(dim=1), torch.tensor(clip, dtype=torch.float64))
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("range_", ["positive", "symmetric", "ball"])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 3e38])
def test_rows_that_are_not_finite_stay_within_the_radius(range_: str, value: float) -> None:
    layer = seeded(noise=1.0, range=range_).eval()
    x = torch.zeros(3, WIDTH)
    x[0, 0], x[1], x[2, ::2] = value, value, value
    out = layer(x)
    assert bool(torch.isfinite(out).all())
    apart = torch.cdist(out.double(), out.double()).max()
    assert float(apart) <= 2 * layer.radius(WIDTH) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("range_", "dropout", "deviation"),
    [
        ("positive", 0.0, 0.5 * 1.5 * math.sqrt(WIDTH)),
        ("symmetric", 0.0, 0.5 * 1.5 * math.sqrt(WIDTH)),
        ("positive", 0.75, 0.5 * 1.5 * math.sqrt(WIDTH / 4)),
        ("ball", 0.0, 0.5 * 1.5),
    ],
)
def test_noise_has_the_stated_size(range_: str, dropout: float, deviation: float) -> None:
    layer = seeded(noise=1.5, range=range_, dropout=dropout)
    out = layer(torch.zeros(ROWS, WIDTH))
    kept = out[out != 0] * (1 - dropout)
    assert kept.numel() == ROWS * round(WIDTH * (1 - dropout))
    assert float(kept.std()) == pytest.approx(deviation, rel=0.04)
    assert abs(float(kept.mean())) < 5 * deviation / math.sqrt(kept.numel())


def test_exact_masks_keep_k_elements_and_do_not_look_at_the_row() -> None:
    settings = {"noise": 1e-6, "dropout": 0.5}
    ones, other = seeded(**settings), seeded(**settings)
    x = torch.full((ROWS, WIDTH), 0.5)
    kept = ones(x) > 0.1
    assert torch.equal(kept.sum(1), torch.full((ROWS,), WIDTH // 2))
    x[:, :5] = 0.3
    assert torch.equal(kept, other(x) > 0.1)
    share = kept.float().mean(0)
    assert float((share - 0.5).abs().max()) < 0.15


def test_the_spread_is_a_function_of_what_is_released() -> None:
    layer = seeded(noise=1.0, dropout=0.5)
    released = [layer(torch.rand(ROWS, WIDTH)) for _ in range(2)]
    assert layer.spread == [pytest.approx(float(out.std(dim=1).mean())) for out in released]


def test_bernoulli_masks_vary_in_size() -> None:
    layer = seeded(noise=1e-6, dropout=0.5, mask="bernoulli")
    sizes = (layer(torch.full((ROWS, WIDTH), 0.5)) > 0.1).sum(1)
    assert sizes.float().mean() == pytest.approx(WIDTH / 2, rel=0.05)
    assert sizes.min() < WIDTH // 2 < sizes.max()


def test_equal_batches_never_share_noise() -> None:
    layer = seeded(noise=1.0)
    x = torch.zeros(3, WIDTH)
    first, second = layer(x), layer(x)
    layer.begin(1)
    third = layer(x)
    assert not torch.equal(first, second) and not torch.equal(first, third)
    layer.begin(0)
    assert torch.equal(layer(x), first)


def test_what_is_not_a_number_counts_as_zero() -> None:
    layer = seeded(noise=1.0).eval()
    x = torch.tensor([[float("nan"), float("inf"), -float("inf"), 0.1]])
    assert torch.equal(layer(x), torch.tensor([[0.0, 0.5, 0.0, 0.1]]))


def test_gradients_pass_where_nothing_is_clipped() -> None:
    x = torch.tensor([[0.2, 0.9, -0.1]], requires_grad=True)
    seeded(noise=1.0)(x).sum().backward()
    assert torch.equal(x.grad, torch.tensor([[1.0, 0.0, 0.0]]))


def test_copies_and_files_hold_no_key() -> None:
    layer = seeded(noise=1.0)
    file = io.BytesIO()
    torch.save(layer, file)
    assert RandomSource.from_seed(3).key not in file.getvalue()
    assert copy.deepcopy(layer)._source is None


def test_the_layer_goes_before_the_last_linear_one() -> None:
    model = with_sanitization(build("lenet5", (1, 28, 28), 10))
    assert isinstance(model[-2], SanitizationLayer) and isinstance(model[-1], nn.Linear)
    assert with_sanitization(model)[-2] is model[-2]
    assert Split(model).width(torch.zeros(1, 1, 28, 28)) == 84
    check(model, torch.zeros(1, 1, 28, 28))


@pytest.mark.parametrize("model", [nn.Linear(3, 2), nn.Sequential(nn.Flatten(), nn.ReLU())])
def test_models_without_a_place_for_it_are_refused(model: nn.Module) -> None:
    with pytest.raises(ModelError, match="sanitization layer"):
        with_sanitization(model)
    with pytest.raises(ModelError, match="SanitizationLayer"):
        Split(model)


def test_the_funnel_narrows_to_n() -> None:
    model = build("funnel-cnn", (3, 32, 32), 10, width=60)
    assert isinstance(model, nn.Sequential)
    widths = [part.out_features for part in model if isinstance(part, nn.Linear)]
    stages = [part for part in model if isinstance(part, nn.Conv2d | nn.MaxPool2d)]
    assert widths == [480, 240, 120, 60, 10] and len(stages) == 6
    with pytest.raises(ArgumentError, match="width"):
        build("linear", (3,), 2, width=5)


@pytest.mark.parametrize("name", ["patches", "projection"])
def test_frozen_encoders_take_a_width(name: str) -> None:
    model = build(name, (1, 28, 28), 10, width=20)
    assert Split(model).width(torch.zeros(1, 1, 28, 28)) == 20
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize(("kind", "half"), [("positive", 3.0), ("symmetric", 6.0), ("ball", 2.0)])
def test_the_radius_is_half_of_how_far_apart_rows_can_be(kind: Range, half: float) -> None:
    layer = SanitizationLayer(clip=2.0, range=kind)
    ends = layer.bounded(torch.tensor([[1e6] * 9, [-1e6] * 9]))
    assert layer.radius(9) == pytest.approx(half)
    assert float((ends[0] - ends[1]).norm()) == pytest.approx(2 * half)


def test_the_variance_is_that_of_the_noise_that_is_added() -> None:
    torch.manual_seed(0)
    for dropout in (0.0, 0.5):
        layer = SanitizationLayer(clip=2.0, noise=1.5, dropout=dropout)
        released = layer(torch.zeros(4000, 8))
        assert layer.variance(8) == pytest.approx(float(released.var()), rel=0.05)


def test_a_projection_keeps_unit_variance_at_length_one() -> None:
    model = build("projection", (20, 7, 7), 4)
    x = torch.randn(50, 20, 7, 7, generator=torch.Generator().manual_seed(0))
    lengths = Split(model).activations(x).detach().norm(dim=1)
    assert Split(model).width(x) == 300
    assert float(lengths.mean()) == pytest.approx(1.0, rel=0.05)


def test_resnet_is_sanitized_at_its_average_pooling() -> None:
    model = build("resnet-18", (3, 16, 16), 10)
    assert Split(model).width(torch.zeros(1, 3, 16, 16)) == 512
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert sum(m.kernel_size == (3, 3) for m in convolutions) == 17
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
