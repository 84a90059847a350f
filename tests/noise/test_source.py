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
from tacit.noise.rounding import Grid
from tacit.noise.source import RandomSource

COUNT = 400_000


@pytest.fixture(autouse=True, params=[0, 3], ids=["portable", "native"])
def path(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param and native.active() is None:
        pytest.skip("the compiled kernels are not built")
    with native.limited_to(request.param):
        yield


def noise(source: RandomSource, purpose: str, index: int, count: int) -> torch.Tensor:
    """Noise of unit scale on zeros."""
    zeros = torch.zeros(count, dtype=torch.float32, device="cpu")
    return source.perturb_(zeros, purpose, index, [count], [1.0], 1.0)


def looks_standard_normal(sample: torch.Tensor) -> bool:
    """Whether spread, centre, tails and shape all fit at one in a million."""
    z = sample.double().numpy()
    n = len(z)
    spread = (float(np.mean(z**2)) - 1) / math.sqrt(2 / n)
    centre = float(np.mean(z)) * math.sqrt(n)
    fourth = (float(np.mean(z**4)) - 3) / math.sqrt(96 / n)
    tail = stats.binomtest(int((np.abs(z) > 3).sum()), n, 2 * stats.norm.sf(3)).pvalue
    smeared = z + np.random.default_rng(0).uniform(-0.5, 0.5, n) / 128  # z lies on a grid
    shape = stats.kstest(smeared, "norm").pvalue
    return max(abs(spread), abs(centre), abs(fourth)) < 5 and min(tail, shape) > 1e-6


def test_noise_is_standard_normal() -> None:
    assert looks_standard_normal(noise(RandomSource.from_seed(1), "n", 0, COUNT))
    assert looks_standard_normal(noise(RandomSource.from_entropy(), "n", 0, COUNT))


@pytest.mark.parametrize("scale", [0.9, 0.99, 1.01])
def test_the_test_rejects_a_wrong_scale(scale: float) -> None:
    assert not looks_standard_normal(noise(RandomSource.from_seed(1), "n", 0, COUNT) * scale)


def test_far_tails_are_there() -> None:
    z = noise(RandomSource.from_seed(3), "tail", 0, 8_000_000).abs()
    for far in (2.0, 3.0, 4.0, 4.5, 5.0):
        beyond = int((z > far).sum())
        assert stats.binomtest(beyond, len(z), 2 * stats.norm.sf(far + 2**-8)).pvalue > 1e-6
    assert 5 < float(z.max()) < 7.5


def test_neighbouring_values_are_uncorrelated() -> None:
    z = noise(RandomSource.from_seed(3), "n", 0, COUNT)
    for lag in (1, 2, 8, 15, 16, 17, 32, 255, 256, 1 << 15, 1 << 16):
        correlation = float((z[:-lag] * z[lag:]).mean()) * math.sqrt(COUNT - lag)
        assert abs(correlation) < 5


def test_streams_of_other_purposes_steps_and_keys_are_independent() -> None:
    source = RandomSource.from_seed(4)
    base = noise(source, "noise", 0, 10_000)
    for other in (
        noise(source, "noise", 1, 10_000),
        noise(source, "sampling", 0, 10_000),
        noise(RandomSource.from_seed(5), "noise", 0, 10_000),
        noise(source.renewed(1), "noise", 0, 10_000),
    ):
        assert abs(float((base * other).mean())) * 100 < 5
        assert not torch.equal(base, other)


def test_the_same_address_gives_the_same_numbers() -> None:
    first, second = RandomSource.from_seed(6), RandomSource.from_seed(6)
    assert torch.equal(noise(first, "n", 9, 70_000), noise(second, "n", 9, 70_000))
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
        RandomSource.from_seed(1).words("n", 0, 1 << 37)


def test_defaults_of_torch_change_no_number() -> None:
    source = RandomSource.from_seed(9)
    expected = noise(source, "n", 0, 300)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = noise(source, "n", 0, 300)
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
    added = noise(source, "n", 0, count).double() * torch.tensor(scales).repeat_interleave(lengths)
    steps = torch.tensor([Grid.of(scale).step for scale in scales]).repeat_interleave(lengths)
    off = found.double() * 64.3 - (vector + added)
    allowed = steps / 2 + torch.tensor(scales).repeat_interleave(lengths) * 2**-8
    assert (off.abs() <= 1.001 * allowed + 1e-6 * found.abs() * 64.3).all()
    assert not torch.allclose(found, vector / 64.3)


@pytest.mark.parametrize(
    ("dtype", "precision"), [(torch.float64, 1e-7), (torch.bfloat16, 0.01), (torch.float16, 0.002)]
)
@pytest.mark.parametrize("stride", [1, 3])
def test_vectors_of_any_type_get_the_same_noise(
    dtype: torch.dtype, precision: float, stride: int
) -> None:
    source, count = RandomSource.from_seed(4), 70_001
    vector = torch.full((count * stride,), 2.0, dtype=dtype)[::stride]
    found = source.perturb_(vector, "n", 0, [count], [1.5], 4.0)
    assert found is vector
    with native.limited_to(0):
        wanted = source.perturb_(torch.full((count,), 2.0), "n", 0, [count], [1.5], 4.0)
    assert torch.allclose(found.float(), wanted, rtol=precision, atol=precision)
