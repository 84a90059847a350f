"""Answers to patches of generated images: one record at a time, whitened, of one length."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tacit import config
from tacit.data import patches, whitening
from tacit.data.generated import GeneratedImages
from tacit.data.patches import PatchFeatures, WhitenedPatchFeatures
from tacit.errors import ArgumentError
from tacit.train import train

SMALL = {"name": "patches", "count": 20, "size": 3, "width": 60}


def images(count: int, channels: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, channels, 9, 8), generator=generator, dtype=torch.uint8)


def function(mirrored: bool = False, width: int = 60) -> WhitenedPatchFeatures:
    return WhitenedPatchFeatures((1, 9, 8), 20, 3, 2, width, mirrored)


def by_convolution(features: PatchFeatures, x: Tensor) -> Tensor:
    average = torch.full_like(features.patches[:1], 1.0 / features.patches[0].numel())
    mean = F.conv2d(x, average, stride=features.stride)
    spread = F.conv2d(x * x, average, stride=features.stride) - mean**2
    found = F.conv2d(x, features.patches, stride=features.stride) / torch.sqrt(spread + 1e-2)
    both = torch.cat((F.relu(found - features.cut), F.relu(-found - features.cut)), 1)
    return F.adaptive_avg_pool2d(both, features.grid).flatten(1)


@pytest.mark.parametrize(("grid", "stride"), [(1, 1), (2, 1), (3, 2)])
def test_answers_are_cut_off_correlations_over_contrast(grid: int, stride: int) -> None:
    features = PatchFeatures(2, 7, 3, grid, stride).double()
    x = torch.rand(20, 2, 11, 9, dtype=torch.float64)
    kernels = torch.randn_like(features.patches)
    features.patches.copy_(kernels - kernels.mean((1, 2, 3), keepdim=True))
    expected = by_convolution(features, x)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(features.answers(x), expected)
    features.mirrored = True
    both = (expected + by_convolution(features, x.flip(3))) / 2
    torch.testing.assert_close(features.answers(x), both)


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_changed_record_changes_its_own_features_and_no_others(mirrored: bool) -> None:
    before, after = images(20), images(20)
    after[7] = 255 - after[7]
    made = function(mirrored)
    changed = (made.compute(before) != made.compute(after)).any(1)
    assert changed.nonzero().flatten().tolist() == [7]


def test_an_image_and_its_mirror_image_have_the_same_mirrored_features() -> None:
    x = images(4)
    mirrored, plain = function(mirrored=True), function()
    torch.testing.assert_close(mirrored.compute(x), mirrored.compute(x.flip(3)))
    assert not torch.allclose(plain.compute(x), plain.compute(x.flip(3)), atol=0.05)


def test_features_have_one_length_and_are_whitened_by_generated_images() -> None:
    made = function()
    found = made.compute(images(30))
    assert found.shape == (30, 60)
    torch.testing.assert_close(found.norm(dim=1), torch.full((30,), whitening.LENGTH))
    drawn = GeneratedImages.draw(whitening.GENERATED, (1, 9, 8), patches._SEED).pixels
    centre, directions = made._whitening
    answers = (made._features.answers(drawn) - centre) @ directions
    covariance = answers.T @ answers / len(answers)
    torch.testing.assert_close(
        covariance[:10, :10], covariance.diagonal()[:10].diag(), atol=1e-2, rtol=0
    )
    assert 0.9 < float(covariance[0, 0]) < 1.01


def test_the_function_is_the_same_whatever_was_drawn_before_and_draws_nothing_of_others() -> None:
    first = function().compute(images(5))
    torch.manual_seed(3)
    state = torch.get_rng_state()
    assert torch.equal(function().compute(images(5)), first)
    assert torch.equal(torch.get_rng_state(), state)


def test_nothing_is_computed_before_the_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("drawn")

    monkeypatch.setattr(GeneratedImages, "draw", refuse)
    made = function()
    assert made.key["width"] == 60 and "20 patches of generated images" in made.described
    with pytest.raises(AssertionError, match="drawn"):
        made.compute(images(1))


def test_no_more_directions_are_kept_than_there_are_answers() -> None:
    assert function(width=5000).key["width"] == 2 * 20 * 4


@pytest.mark.parametrize("shape", [(12,), (1, 3, 9)])
def test_what_cannot_be_transformed_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match="needs images of at least 4 pixels a side"):
        WhitenedPatchFeatures(shape, 20, 3, 2, 60, False)


def test_a_recipe_with_patches_learns_and_names_them_in_its_certificate(tmp_path: Path) -> None:
    values = {
        "data": {"name": "digits"},
        "features": SMALL,
        "model": {"name": "linear"},
        "method": {"name": "dpsgd", "clip": 0.5},
        "training": {"epochs": 10, "batch_size": 300, "learning_rate": 8.0, "momentum": 0.9},
        "run": {"seed": 1},
    }
    recipe = config.from_values(values)
    result = train(recipe, out=tmp_path / "run")
    public = result.certificate["treated_as_public"]
    assert any("patches of generated images" in sentence for sentence in public)
    assert result.accuracy is not None and result.accuracy > 0.8
    assert config.load(str(tmp_path / "run" / "recipe.toml")) == recipe


def test_features_of_another_name_take_none_of_the_settings_of_the_first() -> None:
    values = {"features": {"name": "scattering", "groups": 3, "mirrored": True}}
    first = config.from_values(values)
    other = config.from_values(values, {"features.name": "patches"})
    assert other.features is not None and other.features.mirrored is False
    assert first.digest() != other.digest()
    with pytest.raises(ArgumentError, match=r"features\.name is missing; give one of scattering"):
        config.from_values({"features": {"grid": 3}})
    with pytest.raises(ArgumentError, match="did you mean 'count'"):
        config.from_values({"features": {"name": "patches", "counts": 3}})
