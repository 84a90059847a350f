"""What comes out of the noise: the scales it states, its addresses, and how it is marked."""

import math
from typing import Any

import pytest
import torch

from tacit.clipping.contract import ClippedSum, Layout
from tacit.noise.gaussian import GaussianNoise, noised, post_processed, unprotected
from tacit.noise.source import RandomSource
from tacit.privacy.relations import Relation

SOURCE = RandomSource.from_seed(9)
LAYOUT = Layout(("a", "b", "c"), (torch.Size([3]), torch.Size([2, 2]), torch.Size([5])), (0, 1, 1))


def clipped(bounds: tuple[float, ...] = (0.5, 3.0)) -> ClippedSum:
    layout = LAYOUT if len(bounds) == 2 else Layout(LAYOUT.names, LAYOUT.shapes, (0, 0, 0))
    return ClippedSum(torch.arange(12.0), layout, bounds, (1 / len(bounds),) * len(bounds))


class Asked:
    """A random source that writes down what it is asked to perturb."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def address(self, purpose: str, content: torch.Tensor, scales: Any) -> str:
        self.asked.append(("address", purpose, tuple(scales)))
        return f"{purpose} named"

    def perturb_(self, vector: torch.Tensor, *given: Any) -> torch.Tensor:
        purpose, index, ends, scales, divisor = given
        self.asked.append((purpose, index, tuple(ends), tuple(scales), divisor))
        return vector


@pytest.mark.parametrize("relation", [Relation.ZERO_OUT, Relation.REPLACE_ONE])
def test_noise_is_asked_for_by_step_sum_and_scale_of_each_parameter(relation: Relation) -> None:
    times = 2.0 if relation is Relation.REPLACE_ONE else 1.0
    asked: Any = Asked()
    private = GaussianNoise(asked, 2.0, relation).privatise(clipped(), 7, 4.0)
    first, second = (2.0 * times * bound * math.sqrt(2) for bound in (0.5, 3.0))
    assert asked.asked == [
        ("address", "gradient noise 7", pytest.approx((first, second, second))),
        ("gradient noise 7 named", 0, (3, 7, 12), pytest.approx((first, second, second)), 4.0),
    ]
    assert private.scales == pytest.approx((first / 4, second / 4, second / 4))
    assert private.protected and private.layout is LAYOUT


def test_one_scale_for_all_parameters_is_one_run_of_noise() -> None:
    asked: Any = Asked()
    GaussianNoise(asked, 2.0, purpose="other").privatise(clipped((0.5,)), 0, 4.0)
    assert asked.asked[1] == ("other 0 named", 0, (12,), (1.0,), 4.0)


def test_noise_on_a_vector_is_asked_for_by_its_content_and_not_divided() -> None:
    asked: Any = Asked()
    found = noised(torch.arange(6.0).view(2, 3), 1.5, "a test", asked)
    assert asked.asked == [
        ("address", "a test", (1.5,)),
        ("a test named", 0, (6,), (1.5,), 1.0),
    ]
    assert torch.equal(found, torch.arange(6.0).view(2, 3))


def test_only_the_baseline_is_marked_as_unprotected() -> None:
    vector = torch.zeros(12)
    assert not unprotected(vector, LAYOUT).protected
    assert post_processed(vector, LAYOUT).protected
    for made in (unprotected(vector, LAYOUT), post_processed(vector, LAYOUT)):
        assert made.vector is vector and made.layout is LAYOUT and made.scales == ()


def test_a_mark_cannot_be_changed_afterwards() -> None:
    made: Any = unprotected(torch.zeros(12), LAYOUT)
    with pytest.raises(AttributeError):
        made.protected = True
    assert not made.protected


def test_the_number_of_records_never_divides() -> None:
    """The same sum, whatever came into it, is divided by the constant that was given."""
    noise = GaussianNoise(SOURCE, 1e-5)
    made = noise.privatise(clipped((1.0,)), 3, 7.0)
    torch.testing.assert_close(made.vector, torch.arange(12.0) / 7, rtol=0, atol=2e-5)


def test_scales_of_unlike_size_stay_with_their_parameters() -> None:
    sums = ClippedSum(torch.zeros(12), LAYOUT, (1e-6, 1e6), (0.5, 0.5))
    vector = GaussianNoise(SOURCE, 1.0).privatise(sums, 0, 1.0).vector
    assert vector[:3].abs().max() < 1e-4 < 1e3 < vector[3:].abs().min()
