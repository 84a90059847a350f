"""The scattering transform against kymatio's values, and what follows from its definition."""

import json
from pathlib import Path

import pytest
import torch
from make_scattering_reference import CASES, picture

from tacit.data.scattering import Scattering
from tacit.errors import ArgumentError

REFERENCE = json.loads(Path(__file__).with_name("scattering_reference.json").read_text("utf-8"))


@pytest.mark.parametrize("case", CASES)
def test_values_agree_with_kymatio(case: tuple[int, int, int, int]) -> None:
    scale, angles, height, width = case
    shape, texts = REFERENCE[" ".join(map(str, case))]
    expected = torch.tensor([float(text) for text in texts.split()]).view(shape)
    image = torch.from_numpy(picture(height, width))[None, None]
    found = Scattering((height, width), scale, angles)(image)[0]
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5)


def test_channels_are_transformed_one_by_one() -> None:
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    transform = Scattering((16, 16))
    together = transform(images)
    assert together.shape == (2, 3 * 81, 4, 4)
    second = transform(images[:, 1:2])
    torch.testing.assert_close(together[:, 81:162], second)


def test_a_constant_image_has_nothing_but_its_average() -> None:
    found = Scattering((16, 16))(torch.full((1, 1, 16, 16), 0.5))[0]
    torch.testing.assert_close(found[0], torch.full((4, 4), 0.5))
    assert found[1:].abs().max() < 1e-6


def test_coefficients_grow_with_the_image_and_ignore_its_sign_beyond_the_average() -> None:
    image = torch.from_numpy(picture(16, 16))[None, None]
    transform = Scattering((16, 16))
    torch.testing.assert_close(transform(3 * image), 3 * transform(image))
    torch.testing.assert_close(transform(-image)[:, 1:], transform(image)[:, 1:])


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(ArgumentError, match="scale is 3, but images are 8×8"):
        Scattering((8, 8), scale=3)
