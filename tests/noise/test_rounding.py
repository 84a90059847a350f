"""Noise is what exact arithmetic on the bits of U says, whichever path decided it."""

import itertools
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from flint import arb, ctx
from scipy import stats

from tacit import native
from tacit.errors import ArgumentError
from tacit.noise import quantile, rounding
from tacit.noise.rounding import Grid, exact_steps, release_, runs, settle_
from tacit.noise.source import RandomSource, _word, _words

SCALES = [0.5, 0.75, 1.0, 1.3, 1.999]


def constant(word: int) -> Callable[[int], int]:
    """Bits of U that go on with alternating digits."""
    return lambda level: word if level == 0 else 0xAAAAAAAA


def released(x: np.ndarray, words: np.ndarray, scale: float) -> tuple[np.ndarray, list[int]]:
    """In steps of the grid, through the portable path alone."""
    values = x.copy()
    parts = runs([len(x)], [scale], 1.0)
    undecided = release_(values, parts, iter([words]))
    return np.rint(values / parts[0].grid.step), undecided


def check_32_bits(x: np.ndarray, words: np.ndarray, steps: np.ndarray, grid: Grid) -> np.ndarray:
    """Which results 32 bits of U and the normal tail prove right; no result may be proven wrong.

    Uses nothing of the paths under test but `quantile.tail`, which has a test of its own.
    """
    signed = words.view(np.int32)
    folded = (signed ^ (signed >> 31)).astype(np.float64)
    t = x.astype(np.float64) / grid.step
    moved = np.where(signed < 0, t - steps, steps - t)
    upper, lower = (moved + 0.5) / grid.ratio, (moved - 0.5) / grid.ratio
    assert (upper >= 0).all()
    within = quantile.tail(np.clip(upper, 0, 9))
    beyond = np.where(lower > 0, quantile.tail(np.clip(lower, 0, 9)), 1.0)
    error = quantile.TAIL_ERROR
    wrong = ((folded + 1) * 2.0**-32 < within * (1 - error)) | (
        folded * 2.0**-32 > beyond * (1 + error)
    )
    assert not wrong[(upper <= 9) & (folded > 0)].any()
    right = (folded * 2.0**-32 > within * (1 + error)) & (
        (folded + 1) * 2.0**-32 < beyond * (1 - error)
    )
    return right & (upper <= 9)


@pytest.mark.parametrize("levels", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_million_releases_are_proven_right_on_every_path(levels: int, dtype: torch.dtype) -> None:
    source, count = RandomSource.from_seed(5), 1_000_000
    x = torch.randn(count, dtype=dtype, generator=torch.Generator().manual_seed(2)) * 5
    address = source._address("n", 3, count)
    words = np.concatenate(list(_words(*address, count)))
    with native.limited_to(levels):
        y = source.perturb_(x.clone(), "n", 3, [count], [1.7], 1.0)
    grid = Grid.of(1.7)
    steps = y.double().numpy() / grid.step
    assert (steps == np.rint(steps)).all()
    proven = check_32_bits(x.numpy(), words, steps, grid)
    rest = np.flatnonzero(~proven)
    assert len(rest) < 10
    for place in rest:
        bits = [_word(*address, int(place), level) for level in range(8)]
        assert bits[0] == words[place]
        assert steps[place] == exact_steps(x.numpy()[place : place + 1], grid, bits.__getitem__)
    steps[count // 2] += 1
    with pytest.raises(AssertionError):
        check_32_bits(x.numpy(), words, steps, grid)


@pytest.mark.parametrize("levels", [0, 3])
@pytest.mark.parametrize("power", [-60, -9, 9, 60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_the_same_in_units_of_its_scale(
    levels: int, power: int, dtype: torch.dtype
) -> None:
    """Sums and scale times a power of two, however large: the result times that power."""
    source = RandomSource.from_seed(5)
    x = torch.randn(3000, dtype=dtype, generator=torch.Generator().manual_seed(2)) * 5
    with native.limited_to(levels):
        usual = source.perturb_(x.clone(), "n", 3, [3000], [1.7], 1.0)
        scaled = source.perturb_(x * 2.0**power, "n", 3, [3000], [1.7 * 2.0**power], 1.0)
    assert torch.equal(scaled, usual * 2.0**power)


@pytest.mark.parametrize("scale", SCALES)
def test_words_at_every_boundary_are_decided_as_in_ball_arithmetic(scale: float) -> None:
    """For many fractions and all boundaries: the words around the one that crosses it."""
    grid = Grid.of(scale)
    generator = np.random.default_rng(1)
    ctx.prec = 128
    words, xs = [], []
    for k in range(int(6.2 * grid.ratio)):
        fraction = float(np.float32(generator.uniform(-0.5, 0.5)))
        tail = quantile.upper_tail((arb(k + 0.5) - arb(fraction)) / arb(grid.ratio))
        crossing = int(float(tail * 2**32))
        for near in range(-3, 4):
            if 0 <= crossing + near < 2**31:
                words.append(crossing + near)
                xs.append(fraction * grid.step)
    word_array, x = np.array(words, np.uint32), np.array(xs, np.float32)
    for flipped, dtype in itertools.product((False, True), (np.float32, np.float64)):
        chosen = ~word_array if flipped else word_array
        values = (-x if flipped else x).astype(dtype)
        steps, undecided = released(values, chosen, scale)
        left = set(undecided)
        assert len(left) < len(words) / 3
        for i, word in enumerate(chosen.tolist()):
            if i not in left:
                assert steps[i] == exact_steps(values[i : i + 1], grid, constant(word))


def test_sums_chosen_to_lie_on_boundaries_are_decided_alike_on_every_path() -> None:
    source, grid = RandomSource.from_seed(8), Grid.of(1.0)
    exact = 0
    for index in range(40):
        words = next(_words(*source._address("n", index, 60), 60))
        z = stats.norm.isf((words.astype(np.float64) + 0.5) * 2.0**-32)
        x = torch.from_numpy(grid.step * (0.5 - grid.ratio * z))
        found = []
        for levels in range(4):
            with native.limited_to(levels):
                found.append(source.perturb_(x.clone(), "n", index, [60], [1.0], 1.0))
        assert all(torch.equal(found[0], other) for other in found[1:])
        values = x.numpy().copy()
        exact += len(release_(values, runs([60], [1.0], 1.0), iter([words])))
    assert exact > 500


@pytest.mark.parametrize("word", [0, 1, 2, 17, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 2])
@pytest.mark.parametrize("further", [0, 1, 2**31, 2**32 - 1])
def test_exact_rounding_agrees_with_high_precision(word: int, further: int) -> None:
    """The tails reach beyond 8 standard deviations; nothing is cut."""
    grid = Grid.of(1.0)
    bits = [word, further, *[0x12345678] * 30]
    found = exact_steps(np.array([0.3], np.float64), grid, bits.__getitem__)
    ctx.prec = 2000
    folded = word ^ 0xFFFFFFFF if word >> 31 else word
    digits = folded
    for one in bits[1:]:
        digits = digits << 32 | one
    z = arb(2).sqrt() * (2 * (arb(digits) + arb(0.5)) / arb(2) ** (32 * 32)).erfcinv()
    signed = -z if word >> 31 else z
    exact = (arb(0.3) + signed) / arb(grid.step)
    assert abs(arb(found) - exact) < arb(0.5)
    if folded == 0:
        assert abs(found * grid.step - 0.3) > 6.2
    if folded == 0 and further <= 1:
        assert abs(found * grid.step - 0.3) > 8


@pytest.mark.parametrize("scale", [*SCALES, 2.0**-60, 3e20, 0.1])
def test_the_grid_is_a_power_of_two_and_the_scale_is_never_rounded_down(scale: float) -> None:
    grid = Grid.of(scale)
    assert grid.scale >= scale and grid.scale <= scale * (1 + 2**-23)
    assert grid.scale == grid.ratio * grid.step and 128 <= grid.ratio < 256
    assert np.log2(grid.step) == round(np.log2(grid.step))
    assert np.float32(grid.ratio) == grid.ratio


@pytest.mark.parametrize("scale", [0.0, -1.0, 2.0**-101, 2.0**101, float("nan"), float("inf")])
def test_scales_without_a_grid_are_refused(scale: float) -> None:
    with pytest.raises(ArgumentError, match="standard deviation"):
        Grid.of(scale)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_are_read_exactly_and_clamped(dtype: type) -> None:
    grid = Grid.of(1.0)
    for value in (0.1, -3.7, 1e-40, -1e-44, 5.0, 0.0):
        x = np.array([value], dtype)
        assert rounding._in_steps(x, grid) == Fraction(float(x[0])) / Fraction(grid.step)
    for value, steps in ((np.inf, 2**30), (-np.inf, -(2**30)), (np.nan, 0), (1e30, 2**30)):
        assert rounding._in_steps(np.array([value], dtype), grid) == steps


@pytest.mark.parametrize("levels", [0, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_sums_are_clamped_alike_on_every_path(levels: int, dtype: torch.dtype) -> None:
    source = RandomSource.from_seed(1)
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), 3e38, -1e30, 1e-42], dtype=dtype)
    count = len(x)
    with native.limited_to(levels):
        found = source.perturb_(x.clone(), "n", 0, [count], [1.0], 1.0)
    with native.limited_to(0):
        plain = source.perturb_(torch.zeros(count, dtype=dtype), "n", 0, [count], [1.0], 1.0)
    largest = 2.0**30 * Grid.of(1.0).step
    offset = torch.tensor([largest, -largest, 0, largest, -largest, 0], dtype=torch.float64)
    assert torch.equal(found.double(), (plain.double() + offset).to(dtype).double())


def test_settling_writes_only_what_was_left_open() -> None:
    values = np.array([0.25, 7.0, -0.5], np.float32)
    settle_(values, runs([3], [1.0], 4.0), [0, 2], lambda place, level: 1 << 30)
    size = stats.norm.isf(0.25)
    assert values[1] == 7.0
    assert values[0] == pytest.approx((0.25 + size) / 4, abs=1e-2)
    assert values[2] == pytest.approx((-0.5 + size) / 4, abs=1e-2)


@pytest.mark.parametrize("levels", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("x", [-0.0, -1e-9, -1e-3, 1e-3])
def test_zero_is_released_without_a_sign(x: float, dtype: torch.dtype, levels: int) -> None:
    """−0 came out only where the sum was negative, whatever the noise: one bit of the sum."""
    count = 100_000
    with native.limited_to(levels):
        released = RandomSource.from_seed(3).perturb_(
            torch.full((count,), x, dtype=dtype), "zero", 0, [count], [1.0], 2.0
        )
    zeros = released[released == 0]
    assert len(zeros) > 50 and not torch.signbit(zeros).any()
