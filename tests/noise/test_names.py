"""Names of sums: equal for equal bytes only."""

import hashlib
from collections.abc import Iterator

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from tacit import native
from tacit.noise.source import RandomSource

PIECE = 1 << 18
"""Single-precision numbers under one tag of AES-GCM, and under 64 of the kernels."""


@pytest.fixture(autouse=True, params=[0, 1, 2, 3], ids=["torch", "baseline", "avx2", "avx512"])
def level(request: pytest.FixtureRequest) -> Iterator[int]:
    """Without the compiled kernels, and with each instruction set of theirs."""
    with native.limited_to(request.param):
        if request.param and native.active() is None:
            pytest.skip("the compiled kernels are not built")
        yield request.param


@pytest.mark.parametrize("count", [0, 1, 7, PIECE, PIECE + 1, 5 * PIECE + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_bit_and_the_length_decide_the_name(count: int, dtype: torch.dtype) -> None:
    source, content = RandomSource.from_seed(1), torch.randn(count).to(dtype)
    name = source.name(content)
    assert name == source.name(content.clone()) != RandomSource.from_seed(2).name(content)
    assert source.name(torch.cat([content, torch.zeros(1, dtype=dtype)])) != name
    for place in {0, count // 2, count - 1} - {-1, count}:
        changed = content.clone()
        changed.view(torch.uint8)[place * content.element_size()] ^= 1
        assert source.name(changed) != name


def test_a_part_of_a_tensor_has_the_name_of_its_copy() -> None:
    source, content = RandomSource.from_seed(3), torch.randn(3 * PIECE).bfloat16()
    part = content[1:]
    assert source.name(part) == source.name(part.clone()) != source.name(content)
    assert source.name(content[::2]) == source.name(content[::2].clone())
    few = content[1:9]
    assert source.name(few) == source.name(few.clone()) != source.name(content[:8])


def test_exchanged_blocks_and_words_change_the_name() -> None:
    source, content = RandomSource.from_seed(4), torch.randn(4 * PIECE)
    exchanged = content.view(4, PIECE)[[1, 0, 2, 3]].flatten()
    halves = content.view(4, 2, -1)[:, [1, 0]].flatten()
    assert len({source.name(each) for each in (content, exchanged, halves)}) == 3


def test_without_kernels_names_are_tags_of_aes_gcm_under_a_key_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TACIT_NATIVE", "0")
    monkeypatch.setattr("tacit.noise.source._PIECE", 1 << 12)
    source, content = RandomSource.from_seed(5), torch.randn((1 << 10) + 3)
    key = source.words("names", 0, 8).tobytes()
    raw = content.numpy().tobytes()
    tags = [gcm_tag(key, raw[: 1 << 12]), gcm_tag(key, raw[1 << 12 :])]
    collected = b"".join([len(raw).to_bytes(8, "little"), *tags])
    expected = hashlib.blake2b(collected, key=source.key, digest_size=32).hexdigest()
    assert source.name(content) == expected


@pytest.mark.parametrize("count", [1, 3, 16, 33, 2048, 4096, 4097, 9001])
def test_tags_of_the_kernels_are_those_of_the_proof(count: int) -> None:
    """docs/proofs/names.md, word by word, on numbers of two bytes."""
    kernels = native.active()
    if kernels is None:
        pytest.skip("the compiled kernels are not used here")
    content = torch.randn(2 * count - 1).bfloat16()
    key = torch.randint(-(2**31), 2**31, (native.TAG_KEY_WORDS,)).to(torch.int32)
    raw = content.view(torch.uint8).numpy().tobytes()
    secret = [word % 2**32 for word in key.tolist()]
    assert kernels.tags(content, key) == b"".join(
        sum_of_products(raw[at : at + 16384], secret[32 * time :]).to_bytes(8, "little")
        for at in range(0, len(raw), 16384)
        for time in range(4)
    )


def sum_of_products(piece: bytes, key: list[int]) -> int:
    """NH of a piece that is filled up with zeros."""
    piece += bytes(-len(piece) % 128)
    words = [int.from_bytes(piece[at : at + 4], "little") for at in range(0, len(piece), 4)]
    moved = [(word + secret) % 2**32 for word, secret in zip(words, key, strict=False)]
    return sum(a * b for a, b in zip(moved[::2], moved[1::2], strict=True)) % 2**64


def test_names_with_kernels_have_a_key_of_their_own() -> None:
    kernels = native.active()
    if kernels is None:
        pytest.skip("the compiled kernels are not used here")
    source, content = RandomSource.from_seed(5), torch.randn(5000)
    words = source.words("tags", 0, native.TAG_KEY_WORDS).tolist()
    key = torch.tensor([word - 2**32 * (word >= 2**31) for word in words], dtype=torch.int32)
    collected = (4 * 5000).to_bytes(8, "little") + kernels.tags(content, key)
    expected = hashlib.blake2b(collected, key=source.key, digest_size=32).hexdigest()
    assert source.name(content) == expected


def test_small_hashes_collide_as_rarely_as_the_proof_says() -> None:
    """The kernels' hash in small: all keys of two words of four bits, sums modulo 256."""
    worst = 0
    for one, other in ((0x00, 0x01), (0x00, 0x10), (0x01, 0x10), (0x37, 0xC5), (0x11, 0x99)):
        same = 0
        for key in range(256):
            sums = [
                ((word >> 4) + (key >> 4)) % 16 * ((word + key) % 16) % 256 for word in (one, other)
            ]
            same += sums[0] == sums[1]
        worst = max(worst, same)
    assert 0 < worst <= 256 / 16


def test_the_tags_that_names_are_checked_with_are_those_of_the_standard() -> None:
    """NIST SP 800-38D: test case 13 of McGrew and Viega, and a longer one by the library."""
    assert gcm_tag(bytes(32), b"").hex() == "530f8afbc74536b9a963b4f1c4cb738b"
    message = bytes(range(100))
    assert gcm_tag(bytes(32), message) == AESGCM(bytes(32)).encrypt(bytes(12), b"", message)


def gcm_tag(key: bytes, authenticated: bytes) -> bytes:
    """NIST SP 800-38D, section 7.1, in integers, for an empty text and a nonce of zeros."""
    encrypt = Cipher(AES(key), ECB()).encryptor().update
    point = int.from_bytes(encrypt(bytes(16)), "big")
    table = [point]
    for _ in range(127):
        last = table[-1]
        table.append(last >> 1 ^ (0xE1 << 120 if last & 1 else 0))
    padded = authenticated + bytes(-len(authenticated) % 16)
    lengths = (8 * len(authenticated)).to_bytes(8, "big") + bytes(8)
    total = 0
    for at in range(0, len(padded) + 16, 16):
        total ^= int.from_bytes((padded + lengths)[at : at + 16], "big")
        bits, product = total, 0
        for i in range(128):
            if bits >> (127 - i) & 1:
                product ^= table[i]
        total = product
    mask = int.from_bytes(encrypt(bytes(15) + b"\x01"), "big")
    return (total ^ mask).to_bytes(16, "big")


def test_views_that_only_mark_a_sign_have_the_name_of_what_they_stand_for() -> None:
    source = RandomSource.from_seed(1)
    real, complex_ = torch.randn(50), torch.randn(50, dtype=torch.complex64)
    for plain, view in ((real, torch._neg_view(real)), (complex_, complex_.conj())):
        assert source.name(view) == source.name(view.resolve_conj().resolve_neg())
        assert source.name(view) != source.name(plain)
