"""Names of sums: equal for equal bytes only."""

import hashlib

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from tacit.noise.source import RandomSource

PIECE = 1 << 18
"""Single-precision numbers under one tag."""


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


def test_names_are_tags_of_aes_gcm_under_a_key_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tacit.noise.source._PIECE", 1 << 12)
    source, content = RandomSource.from_seed(5), torch.randn((1 << 10) + 3)
    key = source.words("names", 0, 8).tobytes()
    raw = content.numpy().tobytes()
    tags = [gcm_tag(key, raw[: 1 << 12]), gcm_tag(key, raw[1 << 12 :])]
    collected = b"".join([len(raw).to_bytes(8, "little"), *tags])
    expected = hashlib.blake2b(collected, key=source.key, digest_size=32).hexdigest()
    assert source.name(content) == expected


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
