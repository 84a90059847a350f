"""Floating-point attacks win against noise in single precision and lose against the current noise.

At ε = 1 nobody may be right in more than 73 % of games; the ideal Gaussian mechanism allows less,
and attacks that look at low-order bits alone must be at chance.
"""

import math
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pytest
import torch
from known_bad import compiled_pairs, compiled_release, portable_release
from scipy.special import ndtr
from scipy.stats import binom, binomtest
from torch import nn

from tacit import native
from tacit.audit import floating_point
from tacit.audit.floating_point import (
    COORDINATES,
    DISTINGUISHERS,
    Release,
    Score,
    Singles,
    current_release,
    feasible_pairs,
    gaussian_scale,
    lossy_perturb_,
    play,
)
from tacit.clipping.contract import ClippedSum, Layout
from tacit.models.sanitization import SanitizationLayer
from tacit.noise.correlated import BandedStream, CorrelatedNoise, NoiseStream, TreeStream
from tacit.noise.gaussian import GaussianNoise
from tacit.noise.source import RandomSource

ALLOWED = math.e / (1 + math.e)
ERROR = 1e-4
GAMES = 200
ATTACKS: dict[str, Score] = {
    **DISTINGUISHERS,
    "feasible pairs, compiled": feasible_pairs(compiled_pairs),
}
LAYOUT = Layout(("weight",), (torch.Size([32, 32]),), (0,))


def check_at_chance(release: Release, attack: Score, games: int = 400) -> None:
    rate = play(release, attack, games, seed=2)
    ideal = float(ndtr(0.5 / gaussian_scale()))
    right = round(rate * games)
    assert binom.sf(right - 1, games, ideal) > ERROR
    assert binomtest(right, games, 0.5).pvalue > ERROR


def clipped(total: Singles) -> ClippedSum:
    return ClippedSum(torch.from_numpy(total.copy()), LAYOUT, (1.0,), (1.0,))


def published_weights(total: Singles, scale: float, index: int) -> Singles:
    """The weights after one full-batch step of a linear model, read as the noised sum."""
    model = nn.Linear(32, 32, bias=False)
    nn.init.zeros_(model.weight)
    noise = GaussianNoise(RandomSource.from_seed(index), scale)
    model.weight.grad = noise.privatise(clipped(total), 0, 64.0).vector.view(32, 32)
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    return np.asarray(model.weight.detach().numpy().ravel() * np.float32(-128))


def released_activations(total: Singles, scale: float, index: int) -> Singles:
    """One record's row after the sanitization layer."""
    plan = SanitizationLayer(noise=scale, range="symmetric").settings
    layer = SanitizationLayer(clip=1 / 32, noise=scale, range="symmetric")
    layer.use(plan, 1 / 32, RandomSource.from_seed(index))
    return np.asarray(layer.noised(torch.from_numpy(total.copy())[None])[0].numpy())


def correlated(stream: Callable[[RandomSource], NoiseStream]) -> Release:
    """The first step with correlated noise, whose widening is public and undone here."""

    def release(total: Singles, scale: float, index: int) -> Singles:
        source = RandomSource.from_seed(index)
        multiplier = scale / (1 + scale * math.sqrt(COORDINATES / 2**47))
        noise = CorrelatedNoise(stream(source), multiplier, source)
        return np.asarray(noise.privatise(clipped(total), 0, 1.0).vector.numpy())

    return release


def banded(source: RandomSource) -> NoiseStream:
    return BandedStream(4, COORDINATES, source, {})


def tree(source: RandomSource) -> NoiseStream:
    return TreeStream(8, COORDINATES, source, {})


@pytest.mark.parametrize(
    ("release", "name", "least"),
    [
        (compiled_release, "radius lattice, lanes", 0.95),
        (portable_release, "radius lattice, halves", 0.95),
        (compiled_release, "possible values", 0.95),
        (portable_release, "possible values", 0.95),
        (compiled_release, "precision", 0.85),
        (portable_release, "precision", 0.85),
        (compiled_release, "feasible pairs, compiled", 0.95),
    ],
)
def test_attacks_win_against_noise_in_single_precision(
    release: Release, name: str, least: float
) -> None:
    rate = play(release, ATTACKS[name], GAMES, seed=1)
    assert rate >= least > ALLOWED
    assert binom.sf(round(rate * GAMES) - 1, GAMES, ALLOWED) < ERROR


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("levels", [0, 3])
def test_attacks_are_at_chance_against_the_current_noise(name: str, levels: int) -> None:
    with native.limited_to(levels):
        check_at_chance(current_release, ATTACKS[name])


@pytest.mark.parametrize("site", ["weights", "activations", "banded", "tree"])
def test_every_site_withstands_what_breaks_it_in_single_precision(site: str) -> None:
    release: Release = {
        "weights": published_weights,
        "activations": released_activations,
        "banded": correlated(banded),
        "tree": correlated(tree),
    }[site]
    lattice = DISTINGUISHERS["radius lattice, lanes"]
    for name in ("radius lattice, lanes", "radius lattice, halves", "possible values"):
        check_at_chance(release, DISTINGUISHERS[name], GAMES)
    with patch.object(RandomSource, "perturb_", lossy_perturb_):
        assert play(release, lattice, GAMES, seed=3) >= 0.95
    with native.limited_to(0):
        check_at_chance(release, lattice, GAMES)


def test_known_bad_noise_is_normal_all_the_same() -> None:
    """What gives it away is bits, not its size."""
    for release in (compiled_release, portable_release):
        nothing = np.zeros(1 << 20, np.float32)
        z = release(nothing, 1.0, 5).astype(np.float64)
        assert abs((z**2).mean() - 1) < 5 * math.sqrt(2 / len(z))
        assert abs((z**4).mean() - 3) < 5 * math.sqrt(96 / len(z))


def test_the_scale_is_that_of_the_exact_gaussian_mechanism() -> None:
    scale = gaussian_scale()
    delta = ndtr(0.5 / scale - scale) - math.e * ndtr(-0.5 / scale - scale)
    assert delta == pytest.approx(floating_point.DELTA, rel=1e-6)
    assert ndtr(0.5 / scale) < ALLOWED
