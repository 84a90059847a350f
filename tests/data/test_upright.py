"""Handwriting set upright by the moments of each image."""

import torch
from torch import Tensor

from tacit.data.upright import upright


def slanted(slant: float, shift: int = 0) -> Tensor:
    """A stroke of 11 rows that leans by so many columns a row."""
    image = torch.zeros(1, 1, 21, 21)
    for row in range(5, 16):
        place = 10 + shift + slant * (row - 10)
        left = int(place)
        image[0, 0, row, left] = 1 - (place - left)
        image[0, 0, row, left + 1] = place - left
    return image


def moments(image: Tensor) -> tuple[float, float, float]:
    axis = torch.arange(21.0) - 10
    weight = image[0, 0] / image.sum()
    rows, columns = (weight.sum(1) * axis).sum(), (weight.sum(0) * axis).sum()
    together = (weight * (axis[:, None] - rows) * (axis - columns)).sum()
    return float(rows), float(columns), float(together)


def test_a_leaning_stroke_stands_upright_in_the_middle() -> None:
    before = slanted(0.5, shift=2)
    assert abs(moments(before)[1] - 2) < 1e-5 and moments(before)[2] > 4
    rows, columns, together = moments(upright(before))
    assert abs(rows) < 1e-4 and abs(columns) < 1e-4 and abs(together) < 1e-3
    torch.testing.assert_close(upright(before), slanted(0.0), atol=0.51, rtol=0)
    assert upright(before)[0, 0, 5:16, 10].min() > 0.49


def test_slant_and_place_make_no_difference() -> None:
    first, second = upright(slanted(0.5, shift=1)), upright(slanted(-0.5, shift=-2))
    assert float((first - second.flip(3)).abs().max()) < 1e-4


def test_each_image_is_changed_by_what_is_in_itself_alone() -> None:
    images = torch.cat((slanted(0.5), slanted(-0.25), torch.zeros(1, 1, 21, 21)))
    together = upright(images)
    for index in range(3):
        torch.testing.assert_close(together[index : index + 1], upright(images[index : index + 1]))


def test_an_empty_image_and_a_single_dot_stay_finite() -> None:
    dot = torch.zeros(2, 1, 21, 21)
    dot[1, 0, 3, 4] = 1
    found = upright(dot)
    assert torch.equal(found[0], dot[0])
    assert float(found[1, 0, 10, 10]) > 0.99 and float(found[1].sum()) < 1.01
