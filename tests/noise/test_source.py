"""The random source: a published cipher, the right law, and no number twice."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from scipy import stats

from tacit import native
from tacit.errors import ArgumentError
from tacit.noise.normals import normals
from tacit.noise.source import RandomSource

COUNT = 400_000


@pytest.fixture(autouse=True, params=[0, 3], ids=["portable", "native"])
def path(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param and native.active() is None:
        pytest.skip("the compiled kernels are not built")
    with native.limited_to(request.param):
        yield


def looks_standard_normal(sample: torch.Tensor) -> bool:
    """Whether spread, centre, tails and shape all fit at one in a million."""
    z = sample.double().numpy()
    n = len(z)
    spread = (float(np.mean(z**2)) - 1) / math.sqrt(2 / n)
    centre = float(np.mean(z)) * math.sqrt(n)
    fourth = (float(np.mean(z**4)) - 3) / math.sqrt(96 / n)
    tail = stats.binomtest(int((np.abs(z) > 3).sum()), n, 2 * stats.norm.sf(3)).pvalue
    shape = stats.kstest(z, "norm").pvalue
    return max(abs(spread), abs(centre), abs(fourth)) < 5 and min(tail, shape) > 1e-6


def test_noise_is_standard_normal() -> None:
    assert looks_standard_normal(RandomSource.from_seed(1).normal("n", 0, COUNT))
    assert looks_standard_normal(RandomSource.from_entropy().normal("n", 0, COUNT))


@pytest.mark.parametrize("scale", [0.9, 0.99, 1.01])
def test_the_test_rejects_a_wrong_scale(scale: float) -> None:
    assert not looks_standard_normal(RandomSource.from_seed(1).normal("n", 0, COUNT) * scale)


def test_far_tails_are_there() -> None:
    z = RandomSource.from_seed(3).normal("tail", 0, 8_000_000).abs()
    for far in (2.0, 3.0, 4.0, 4.5, 5.0):
        beyond = int((z > far).sum())
        assert stats.binomtest(beyond, len(z), 2 * stats.norm.sf(far)).pvalue > 1e-6
    assert 5 < float(z.max()) < 6.8


def test_the_two_numbers_of_a_pair_are_independent() -> None:
    shape = (-1, 8, 2, 16) if native.active() else (1, 1, 2, 1 << 19)
    z = RandomSource.from_seed(8).normal("pair", 0, 1 << 20).view(shape).double()
    first, second = z[:, :, 0].flatten().numpy(), z[:, :, 1].flatten().numpy()
    quarters = [np.digitize(stats.norm.cdf(part), [0.25, 0.5, 0.75]) for part in (first, second)]
    assert stats.chi2_contingency(np.histogram2d(*quarters, bins=4)[0]).pvalue > 1e-6
    for one, other in ((first, second), (first**2, second**2), (first, second**2)):
        assert stats.pearsonr(one, other).pvalue > 1e-6
    radius = stats.kstest(first**2 + second**2, "expon", args=(0, 2))
    angle = stats.kstest(np.arctan2(first, second), "uniform", args=(-math.pi, 2 * math.pi))
    assert min(radius.pvalue, angle.pvalue) > 1e-6


def test_the_ends_of_the_range_of_words_are_finite() -> None:
    extremes = [0, 1, 2, (1 << 30) - 1, 1 << 30, 1 << 31, (1 << 32) - 2, (1 << 32) - 1]
    pairs = np.array([(r, a) for r in extremes for a in extremes], np.uint32)
    z = torch.stack([radii * directions for radii, directions in factors(*pairs.T)])
    assert torch.isfinite(z).all()
    assert 6.66 < float(z.abs().max()) < 6.67


def factors(radii: np.ndarray, angles: np.ndarray) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What the portable numbers of these words are products of."""
    quarters = torch.empty(4, len(radii))
    quarters[:2].numpy().view(np.uint32)[:] = np.stack([radii, angles]).astype(np.uint32)
    return ((radii.clone(), directions.clone()) for radii, directions in normals(quarters))


def assert_near(found: torch.Tensor, exact: np.ndarray, tolerance: np.ndarray | float) -> None:
    assert (np.abs(found.double().numpy() - exact) < tolerance).all()


def test_portable_sines_and_cosines_are_exact_to_rounding() -> None:
    angles = np.linspace(-(2**31), 2**31 - 1, 2_000_001).astype(np.int64)
    (_, cosines), (_, sines) = factors(np.zeros_like(angles), angles)
    turned = np.pi * angles / 2**32
    assert_near(cosines, np.cos(turned), 2e-7)
    assert_near(sines, np.sin(turned), 2e-7)
    with pytest.raises(AssertionError):
        assert_near(sines * (1 + 1e-6), np.sin(turned), 2e-7)


def test_portable_radii_are_exact_to_rounding_and_tell_all_words_of_the_tail_apart() -> None:
    small = np.arange(1 << 16)
    words = np.concatenate([small, ~small, np.linspace(-(2**31), 2**31 - 1, 2_000_001)])
    words = words.astype(np.int64)
    (found, _), _ = factors(words, np.zeros_like(words))
    exact = np.sqrt(-2 * np.log(np.abs(words + 0.5) / 2**31))
    assert_near(found.abs(), exact, 2e-7 / exact + 4e-7 * exact)
    with pytest.raises(AssertionError):
        assert_near(found.abs() * (1 + 1e-6), exact, 2e-7 / exact + 4e-7 * exact)
    assert torch.equal(found.signbit(), torch.from_numpy(words < 0))
    assert torch.equal(found[: 1 << 16], -found[1 << 16 : 1 << 17])
    assert (found[:1001].diff() < 0).all()


def test_neighbouring_values_are_uncorrelated() -> None:
    z = RandomSource.from_seed(3).normal("n", 0, COUNT)
    for lag in (1, 2, 8, 15, 16, 17, 32, 255, 256, 1 << 15, 1 << 16):
        correlation = float((z[:-lag] * z[lag:]).mean()) * math.sqrt(COUNT - lag)
        assert abs(correlation) < 5


def test_streams_of_other_purposes_steps_and_keys_are_independent() -> None:
    source = RandomSource.from_seed(4)
    base = source.normal("noise", 0, 10_000)
    for other in (
        source.normal("noise", 1, 10_000),
        source.normal("sampling", 0, 10_000),
        RandomSource.from_seed(5).normal("noise", 0, 10_000),
        source.renewed(1).normal("noise", 0, 10_000),
    ):
        assert abs(float((base * other).mean())) * 100 < 5
        assert not torch.equal(base, other)


def test_the_same_address_gives_the_same_numbers() -> None:
    first, second = RandomSource.from_seed(6), RandomSource.from_seed(6)
    assert torch.equal(first.normal("n", 9, 70_000), second.normal("n", 9, 70_000))
    assert first.torch_seed("n", 2) == second.torch_seed("n", 2)


def test_the_cipher_passes_the_vector_of_rfc_8439() -> None:
    """Section 2.3.2: key 00…1f, nonce 000000090000004a00000000, block 1."""
    key = bytes(range(32))
    nonce = (1).to_bytes(4, "little") + bytes.fromhex("000000090000004a00000000")
    block = Cipher(ChaCha20(key, nonce), mode=None).encryptor().update(bytes(64))
    assert block[:16].hex() == "10f1e7e4d13b5915500fdd1fa32071c4"


def test_words_are_uniform() -> None:
    words = RandomSource.from_seed(7).words("w", 0, 100_000)
    counts = np.bincount(words >> 28, minlength=16)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_entropy_is_never_repeated_and_seeds_are_marked() -> None:
    assert RandomSource.from_entropy().key != RandomSource.from_entropy().key
    assert RandomSource.from_seed(1).repeatable and not RandomSource.from_entropy().repeatable
    fresh = RandomSource.from_entropy()
    assert fresh.renewed(1).key != fresh.renewed(1).key


def test_bad_keys_and_seeds_are_refused() -> None:
    with pytest.raises(ArgumentError, match="32"):
        RandomSource(b"short", "test")
    with pytest.raises(ArgumentError, match="seed"):
        RandomSource.from_seed(-1)


def test_names_follow_the_bytes_and_the_key() -> None:
    source, vector = RandomSource.from_seed(1), torch.zeros(600_000)
    same = source.name(vector)
    assert source.name(vector.clone()) == same
    others = [vector.clone() for _ in range(3)]
    for other, place in zip(others, (0, 262_144, 599_999), strict=True):
        other[place] = 1e-30
    names = {source.name(other) for other in (*others, vector[:-1], vector[:-1].double())}
    assert len(names | {same}) == 6
    assert RandomSource.from_seed(2).name(vector) != same


def test_more_numbers_than_an_address_has_are_refused() -> None:
    with pytest.raises(ArgumentError, match="one address"):
        RandomSource.from_seed(1).normal("n", 0, 1 << 37)


def test_defaults_of_torch_change_no_number() -> None:
    source = RandomSource.from_seed(9)
    expected = source.normal("n", 0, 300)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = source.normal("n", 0, 300)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype == torch.float32 and torch.equal(found, expected)


def test_noise_is_scaled_in_runs_added_and_divided() -> None:
    source = RandomSource.from_seed(4)
    piece, count = 300_016, 1_200_003
    vector = torch.randn(count, generator=torch.Generator().manual_seed(1))
    ends = [1, 5, 260, 260, 9_999, piece, piece + 3, 2 * piece - 1, 3 * piece, count]
    scales = [3.0, 0.1, 1e-3, 9.0, 0.7, 1.1, 0.5, 0.3, 0.2, 2.0]
    found = source.perturb_(vector.clone(), "n", 0, ends, scales, 64.3)
    lengths = torch.tensor(ends).diff(prepend=torch.zeros(1, dtype=torch.int64))
    noise = source.normal("n", 0, count).double() * torch.tensor(scales).repeat_interleave(lengths)
    assert torch.allclose(found.double(), (vector + noise) / 64.3, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(found, vector / 64.3)


@pytest.mark.parametrize(
    ("dtype", "precision"), [(torch.float64, 1e-6), (torch.bfloat16, 0.01), (torch.float16, 0.002)]
)
@pytest.mark.parametrize("stride", [1, 3])
def test_vectors_of_any_type_get_the_same_portable_noise(
    dtype: torch.dtype, precision: float, stride: int
) -> None:
    source, count = RandomSource.from_seed(4), 70_001
    vector = torch.full((count * stride,), 2.0, dtype=dtype)[::stride]
    found = source.perturb_(vector, "n", 0, [count], [1.5], 4.0)
    assert found is vector
    with native.limited_to(0):
        noise = source.normal("n", 0, count).double()
    assert torch.allclose(found.double(), (2 + 1.5 * noise) / 4, rtol=precision, atol=precision)
