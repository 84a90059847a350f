"""Images made by a program."""

import pytest
import torch

from tacit.data.generated import KINDS, GeneratedImages
from tacit.errors import ArgumentError


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)])
def test_images_follow_from_the_seed_and_fill_the_range(shape: tuple[int, ...]) -> None:
    first, again, other = (GeneratedImages.draw(40, shape, seed) for seed in (1, 1, 2))
    assert first.pixels.shape == (40, *shape)
    assert torch.equal(first.pixels, again.pixels) and torch.equal(first.kinds, again.kinds)
    assert not torch.equal(first.pixels, other.pixels)
    assert first.pixels.min() >= 0 and first.pixels.max() <= 1 and first.pixels.std() > 0.1
    assert set(GeneratedImages.draw(300, (1, 8, 8), 0).kinds.tolist()) == set(range(KINDS))


def test_records_that_are_no_images_are_refused() -> None:
    with pytest.raises(ArgumentError, match="given"):
        GeneratedImages.draw(3, (20,), 0)
