"""Directions in which public vectors vary much are shortened, none is turned."""

import pytest
import torch
from torch import Tensor

from tacit import config
from tacit.data import whitening
from tacit.data.features import ScatteringFeatures
from tacit.data.whitening import Whitening
from tacit.errors import ArgumentError


def public(rows: int, width: int) -> Tensor:
    """Vectors around 3 whose first elements vary most, in a basis of their own."""
    generator = torch.Generator().manual_seed(rows + width)
    spread = torch.linspace(0, -3, width).exp() * 4
    turned = torch.linalg.qr(torch.randn(width, width, generator=generator))[0]
    return torch.randn(rows, width, generator=generator) * spread @ turned.T + 3


def before_length(made: Whitening, rows: Tensor) -> Tensor:
    """The vectors before they get one length, in units of which they have one."""
    centred = rows - made.centre
    return centred - (centred @ made.directions * made.taken) @ made.directions.T


@pytest.mark.parametrize("shape", [(900, 12), (8, 30)], ids=["many rows", "few rows"])
def test_directions_are_shortened_by_their_public_variance(shape: tuple[int, int]) -> None:
    x = public(*shape)
    made = Whitening.by(x, power=1.0, least=0.01)
    values, axes = torch.linalg.eigh(torch.cov(x.T, correction=0))
    kept = axes[:, values > 1e-4 * values[-1]]
    found = before_length(made, made.centre + kept.T)
    variances = values[values > 1e-4 * values[-1]]
    left = (1 + variances / (0.01 * values.sum())).rsqrt()
    torch.testing.assert_close(found, kept.T * left[:, None], atol=2e-4, rtol=0)


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_power_says_how_far_variances_come_together(power: float) -> None:
    x = public(4000, 6)
    made = Whitening.by(x, power, least=1e-6)
    before, after = (torch.linalg.eigvalsh(torch.cov(v.T)) for v in (x, before_length(made, x)))
    assert before[-1] / before[0] > 100
    torch.testing.assert_close(
        after[-1] / after[0], (before[-1] / before[0]) ** (1 - power), rtol=0.02, atol=0
    )


def test_vectors_get_one_length_and_depend_on_themselves_alone() -> None:
    x = public(50, 9)
    made = Whitening.by(x, 0.5)
    together = made(x)
    torch.testing.assert_close(together.norm(dim=1), torch.full((50,), whitening.LENGTH))
    alone = torch.cat([made(row[None]) for row in x])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-5)
    assert made(made.centre[None]).abs().max() == 0


def test_eigenvectors_of_equal_variance_may_be_any() -> None:
    basis = torch.eye(4).repeat(2, 1) * torch.tensor([3.0, 1.0, 1.0, 1.0])
    x = torch.cat((basis, -basis))
    turn = torch.eye(4)
    turn[1:, 1:] = torch.linalg.qr(torch.randn(3, 3))[0]
    straight, turned = Whitening.by(x, 0.7), Whitening.by(x @ turn, 0.7)
    rows = torch.randn(5, 4)
    torch.testing.assert_close(straight(rows), turned(rows), atol=1e-4, rtol=1e-4)


def test_scattering_features_are_whitened_by_generated_images_alone() -> None:
    def function(power: float) -> ScatteringFeatures:
        return ScatteringFeatures((1, 8, 8), 1, 4, 5, False, whitened=power, pictures="leaves")

    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    plain, whitened = function(0.0), function(0.5)
    expected = Whitening.by(plain._of_generated(whitening.GENERATED).flatten(1), 0.5)
    found = whitened.compute(x)
    torch.testing.assert_close(found.flatten(1), expected(plain.compute(x).flatten(1)))
    torch.testing.assert_close(found[2:3], whitened.compute(x[2:3]), atol=1e-4, rtol=1e-4)
    assert plain.key != whitened.key and "whitened (power 0.5)" in whitened.described


def test_pictures_without_a_use_are_refused() -> None:
    features = {"name": "scattering", "pictures": "leaves"}
    with pytest.raises(ArgumentError, match="set centred or whitened"):
        config.from_values({"features": features})
    assert config.from_values({"features": {**features, "whitened": 0.5}}).features is not None
